// Float32 products on the matrix unit of a processor that multiplies bfloat16 (AMX).
//
// A float32 number is exactly the sum of three bfloat16 numbers: of its 24 bits each takes eight.
// Of the nine products of two such sums six matter; the other three are below 2^-24 of the whole.
// They are added up in float32, small ones first, over a block of the depth, and blocks by ordinary
// additions. Six products at sixteen times the rate of float32 are 2.6 times as fast, and more
// accurate, for fewer sums are rounded.
//
// bfloat16 has the range of float32, but what is below 2^-126 is zero to the matrix unit, and a
// number that is not finite has no thirds. Rows of the packed side are scaled to about one, so that
// what is lost has a bound; a result that is not well above it, or is not finite, is made again by
// itself, unless the numbers behind it are large enough to lose nothing.
//
// A tile is 16 rows of 16 pairs. Of 32 numbers along the depth, j and j + 16 are a pair: it is the
// same order in both operands, and costs no shuffle. One operand has a row of the tile for each of
// its rows (`upright`), the other a lane.
#pragma once

#include "matrix.hpp"

#if defined(__AMX_BF16__) && defined(__AVX512F__) && defined(__linux__)
#define KW_THIRDS 1

#include <sys/syscall.h>
#include <unistd.h>

#include <limits>

namespace kw {

inline constexpr int kSide = 16;
inline constexpr int kPaired = 2 * kSide;
inline constexpr int kThirds = 3;
inline constexpr int64_t kTile = kSide * kSide;    // of a third, in pairs of 4 bytes
inline constexpr int64_t kStep = kThirds * kTile;  // of all thirds over 32 numbers of the depth
inline constexpr int64_t kDeepSteps = 4;           // of a block of the depth
inline constexpr int64_t kDepthBlock = kDeepSteps * kPaired;  // in numbers
inline constexpr int64_t kChunk = 256;                        // packed rows at once
inline constexpr int64_t kPanel = 256;                        // streamed rows at once
inline constexpr int64_t kThin = 2;                           // packed tiles that are few
inline constexpr int64_t kClose = 1 << 20;            // bytes that stay in the second-level cache
inline constexpr int64_t kHalf = kDeepSteps * kStep;  // a tile of rows over a block, in pairs
inline constexpr int64_t kUnit = 2 * kHalf;
inline constexpr int64_t kAll = int64_t{1} << 40;

typedef uint32_t Pairs __attribute__((vector_size(64)));

// What the unit is told about its registers: eight of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Whether the system lets this process have the unit's registers; it has to be asked once.
inline bool has_thirds() {
  constexpr int kRequest = 0x1023;
  constexpr int kTileData = 18;
  static const bool granted = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  return granted;
}

// The unit's registers while a thread works with them.
class TileRegisters {
 public:
  TileRegisters() {
    const TileConfig config;
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
  }
  TileRegisters(const TileRegisters&) = delete;
  ~TileRegisters() { __asm__ volatile("tilerelease"); }
};

template <int T>
KW_FN void load_tile(const uint32_t* at) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(at), "r"(int64_t{64}), "i"(T) : "memory");
}

template <int T>
KW_FN void store_tile(float* at) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(at), "r"(int64_t{64}), "i"(T) : "memory");
}

template <int T>
KW_FN void clear_tile() {
  __asm__ volatile("tilezero %%tmm%c0" ::"i"(T));
}

template <int Sum, int Upright, int Across>
KW_FN void add_products() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sum), "i"(Upright), "i"(Across));
}

// One streamed tile times each of P packed ones.
template <bool Upright, int P, int Sum, int Streamed, int Packed>
KW_FN void add_thin() {
  add_products<Sum, Upright ? Streamed : Packed, Upright ? Packed : Streamed>();
  if constexpr (P == 2) {
    add_products<Sum + 1, Upright ? Streamed : Packed + 1, Upright ? Packed + 1 : Streamed>();
  }
}

// U x A tiles of results, in registers 0 to 3; operands in 4 and 5 (upright), 6 and 7.
template <int U, int A>
struct TileProducts {
  static constexpr int kUpright = 4;
  static constexpr int kAcross = 6;

  KW_FN static void upright(const uint32_t* at, int64_t next) {
    load_tile<kUpright>(at);
    if constexpr (U == 2) load_tile<kUpright + 1>(at + next);
  }
  KW_FN static void across(const uint32_t* at, int64_t next) {
    load_tile<kAcross>(at);
    if constexpr (A == 2) load_tile<kAcross + 1>(at + next);
  }
  KW_FN static void add() {
    add_products<0, kUpright, kAcross>();
    if constexpr (A == 2) add_products<1, kUpright, kAcross + 1>();
    if constexpr (U == 2) add_products<2, kUpright + 1, kAcross>();
    if constexpr (U == 2 && A == 2) add_products<3, kUpright + 1, kAcross + 1>();
  }
  KW_FN static void clear() {
    clear_tile<0>();
    clear_tile<1>();
    clear_tile<2>();
    clear_tile<3>();
  }
  KW_FN static void store(float (&to)[4][kTile]) {
    store_tile<0>(to[0]);
    if constexpr (A == 2) store_tile<1>(to[1]);
    if constexpr (U == 2) store_tile<2>(to[2]);
    if constexpr (U == 2 && A == 2) store_tile<3>(to[3]);
  }
};

// Sixteen pairs as thirds: the first rounded, so that the second has either sign.
KW_FN void store_thirds(Lanes a, Lanes b, uint32_t* to) {
  constexpr uint32_t kTop = 0xffff0000u;
  for (int part = 0; part < kThirds; ++part) {
    const uint32_t half = part == 0 ? 0x8000u : 0u;
    const Pairs top_a = (reinterpret_cast<Pairs>(a) + half) & kTop;
    const Pairs top_b = (reinterpret_cast<Pairs>(b) + half) & kTop;
    const Pairs both = (top_a >> 16) | top_b;
    __builtin_memcpy(to + part * kTile, &both, sizeof both);
    a -= reinterpret_cast<Lanes>(top_a);
    b -= reinterpret_cast<Lanes>(top_b);
  }
}

// The streamed side on its way into tiles, some lines at a time: what multiplies has time for them.
//
// A line is 16 pairs. There are `groups` times 16 times `inner` of them, the inner ones beside each
// other in memory; the lines of the unit after this one, `ahead` of them, are fetched.
struct Feed {
  const float* from = nullptr;
  uint32_t* to = nullptr;
  int64_t left = 0;
  int64_t inner = 1;
  int64_t apart = 0;
  int64_t next_inner = 0;
  int64_t to_inner = 0;
  int64_t next_line = 0;
  int64_t next_group = 0;
  int64_t to_group = 0;
  int64_t ahead = 0;
  int64_t i = 0;
  int64_t line = 0;

  KW_FN void some(int64_t count) {
    for (count = std::min(count, left), left -= count; count > 0; --count) {
      const float* const a = from + i * next_inner;
      __builtin_prefetch(a + ahead, 0, 2);
      __builtin_prefetch(a + ahead + apart, 0, 2);
      store_thirds(load_lanes(a), load_lanes(a + apart), to + i * to_inner);
      if (++i < inner) continue;
      i = 0;
      from += next_line;
      to += kSide;
      if (++line < kSide) continue;
      line = 0;
      from += next_group;
      to += to_group;
    }
  }
};

// Adds the products of a block of the depth to sums, or begins them.
template <int U, int A>
void multiply_block(const uint32_t* upright, int64_t next_upright, const uint32_t* across,
                    int64_t next_across, int64_t steps, float* const (&sums)[4], bool first,
                    Feed& feed, int64_t lines) {
  using P = TileProducts<U, A>;
  P::clear();
  for (int64_t s = 0; s < steps; ++s) {
    const uint32_t* const u = upright + s * kStep;
    const uint32_t* const a = across + s * kStep;
    P::upright(u, next_upright);
    P::across(a + 2 * kTile, next_across);
    P::add();
    feed.some(lines);
    P::across(a + kTile, next_across);
    P::add();
    feed.some(lines);
    P::upright(u + kTile, next_upright);
    P::add();
    feed.some(lines);
    P::across(a, next_across);
    P::add();
    feed.some(lines);
    P::upright(u + 2 * kTile, next_upright);
    P::add();
    feed.some(lines);
  }
  for (int64_t s = 0; s < steps; ++s) {
    P::upright(upright + s * kStep, next_upright);
    P::across(across + s * kStep, next_across);
    P::add();
    feed.some(lines);
  }
  alignas(64) float block[4][kTile];
  P::store(block);
  for (int i = 0; i < 4; ++i) {
    if ((i & 1) >= A || (i >> 1) >= U) continue;
    float* const sum = sums[i];
    for (int k = 0; k < kTile; k += kLanes) {
      const Lanes x = load_lanes(block[i] + k);
      store_lanes(sum + k, first ? x : load_lanes(sum + k) + x);
    }
  }
}

// The same for one streamed tile against P packed ones, of which there are no more. Large products
// and small ones have sums of their own, so that each third is loaded once.
template <bool Upright, int P>
void multiply_thin(const uint32_t* streamed, const uint32_t* packed, int64_t next, int64_t steps,
                   float* sums, bool first, Feed& feed, int64_t lines) {
  constexpr int kSmall = 2;
  constexpr int kStreamed = 4;
  constexpr int kBeside = 6;
  TileProducts<2, 2>::clear();
  const auto take = [&](int64_t third) __attribute__((always_inline)) {
    load_tile<kBeside>(packed + third * kTile);
    if constexpr (P == 2) load_tile<kBeside + 1>(packed + next + third * kTile);
  };
  for (int64_t s = 0; s < steps; ++s, streamed += kStep, packed += kStep) {
    load_tile<kStreamed>(streamed);
    take(2);
    add_thin<Upright, P, kSmall, kStreamed, kBeside>();
    feed.some(lines);
    take(1);
    add_thin<Upright, P, kSmall, kStreamed, kBeside>();
    feed.some(lines);
    load_tile<kStreamed + 1>(streamed + kTile);
    add_thin<Upright, P, kSmall, kStreamed + 1, kBeside>();
    feed.some(lines);
    take(0);
    add_thin<Upright, P, 0, kStreamed, kBeside>();
    add_thin<Upright, P, kSmall, kStreamed + 1, kBeside>();
    feed.some(lines);
    load_tile<kStreamed>(streamed + 2 * kTile);
    add_thin<Upright, P, kSmall, kStreamed, kBeside>();
    feed.some(lines);
  }
  alignas(64) float block[4][kTile];
  TileProducts<2, 2>::store(block);
  for (int p = 0; p < P; ++p) {
    for (int k = 0; k < kTile; k += kLanes) {
      const Lanes x = load_lanes(block[p] + k) + load_lanes(block[kSmall + p] + k);
      float* const to = sums + p * kTile + k;
      store_lanes(to, first ? x : load_lanes(to) + x);
    }
  }
}

KW_FN void turn_tile_of_pairs(const uint32_t* from, uint32_t* to) {
  turn_block<kSide>(reinterpret_cast<const float*>(from), kSide, reinterpret_cast<float*>(to),
                    kSide);
}

// A tile of 16 rows from r and 32 numbers from k, zeros beyond the matrix; rows times `scales`, if
// there are any.
template <bool Upright>
KW_FN void pack_tile(const Matrix& m, int64_t r, int64_t k, int64_t depth, const float* scales,
                     uint32_t* to) {
  alignas(64) float copy[kSide][kPaired];
  Matrix from{m.at(r, k), kSide, m.row, m.depth};
  const bool whole = r + kSide <= m.rows && k + kPaired <= depth;
  if (!whole || (m.row != 1 && m.depth != 1)) {
    const int64_t rows = std::min<int64_t>(kSide, m.rows - r);
    const int64_t numbers = std::min<int64_t>(kPaired, depth - k);
    for (int64_t i = 0; i < kSide; ++i) {
      if (from.depth == 1) {
        const int64_t count = i < rows ? numbers : 0;
        const int64_t low = std::min<int64_t>(count, kSide);
        const float* const line = from.at(std::min(i, rows - 1), 0);
        store_lanes(copy[i], load_first(line, low));
        store_lanes(copy[i] + kSide, load_first(line + low, count - low));
        continue;
      }
      for (int64_t j = 0; j < kPaired; ++j) {
        copy[i][j] = i < rows && j < numbers ? *from.at(i, j) : 0.0f;
      }
    }
    from = {copy[0], kSide, kPaired, 1};
  }
  const bool along = from.depth == 1;
  alignas(64) uint32_t turned[kStep];
  uint32_t* const into = along == Upright ? to : turned;
  Lanes scale = Lanes{} + 1.0f;
  if (scales && !along) scale = load_lanes(scales);
  for (int line = 0; line < kSide; ++line) {
    Lanes a = load_lanes(along ? from.at(line, 0) : from.at(0, line));
    Lanes b = load_lanes(along ? from.at(line, kSide) : from.at(0, line + kSide));
    if (scales) {
      if (along) scale = Lanes{} + scales[line];
      a *= scale;
      b *= scale;
    }
    store_thirds(a, b, into + line * kSide);
  }
  if (into == turned) {
    for (int part = 0; part < kThirds; ++part) {
      turn_tile_of_pairs(turned + part * kTile, to + part * kTile);
    }
  }
}

// The least and the largest magnitude of a row; zeros do not count as small.
struct Magnitudes {
  float least;
  float largest;
};

// Of sixteen rows, or of sixteen parts of one: bits without signs are in the order of what they
// mean, and one less than zero is more than all.
struct Extremes {
  Pairs least = Pairs{} + 0xffffffffu;
  Pairs largest = Pairs{};

  KW_FN void see(Lanes x) {
    const Pairs bits = reinterpret_cast<Pairs>(x) & 0x7fffffffu;
    const Pairs less = bits - 1;
    least = less < least ? less : least;
    largest = bits > largest ? bits : largest;
  }

  static Magnitudes of(uint32_t least, uint32_t largest) {
    least = least == 0xffffffffu ? 0x7f800000u : least + 1;
    Magnitudes found;
    __builtin_memcpy(&found.least, &least, sizeof least);
    __builtin_memcpy(&found.largest, &largest, sizeof largest);
    return found;
  }
};

inline Magnitudes magnitudes(const Matrix& m, int64_t r, int64_t depth) {
  Extremes seen;
  int64_t k = 0;
  if (m.depth == 1) {
    for (; k + kSide <= depth; k += kSide) seen.see(load_lanes(m.at(r, k)));
  }
  Lanes rest{};
  for (int i = 0; k < depth; ++k, ++i) {
    rest[i % kSide] = *m.at(r, k);
    if (i % kSide == kSide - 1 || k + 1 == depth) seen.see(rest);
  }
  uint32_t least = 0xffffffffu;
  uint32_t largest = 0;
  for (int i = 0; i < kSide; ++i) {
    least = std::min<uint32_t>(least, seen.least[i]);
    largest = std::max<uint32_t>(largest, seen.largest[i]);
  }
  return Extremes::of(least, largest);
}

// Of sixteen rows that lie beside each other.
inline void magnitudes_beside(const Matrix& m, int64_t r, int64_t depth, Magnitudes* found) {
  Extremes seen;
  for (int64_t k = 0; k < depth; ++k) seen.see(load_lanes(m.at(r, k)));
  for (int i = 0; i < kSide; ++i) found[i] = Extremes::of(seen.least[i], seen.largest[i]);
}

// What is known of a packed row: its scale and the inverse; the least of its scaled numbers; from
// which magnitude on a result of it has lost nothing that counts.
struct PackedRows {
  float* scale;
  float* back;
  float* least;
  float* floor;

  static constexpr float kTiny = 0x1p-100f;

  void set(int64_t i, Magnitudes found, int64_t depth) const {
    constexpr float kInf = std::numeric_limits<float>::infinity();
    uint32_t bits;
    __builtin_memcpy(&bits, &found.largest, sizeof bits);
    const int exponent = std::clamp(static_cast<int>(bits >> 23) - 127, -126, 126);
    const bool none = found.largest == 0.0f;
    const bool finite = found.largest < kInf;
    scale[i] = none || !finite ? 1.0f : power_of_two(-exponent);
    back[i] = none || !finite ? 1.0f : power_of_two(exponent);
    least[i] = found.least * scale[i];
    floor[i] = none ? 0.0f : least[i] < kTiny ? kInf : lost(depth);
  }

  // 2^26 times what numbers below 2^-126 add up to, against rows of about one.
  static float lost(int64_t depth) { return static_cast<float>(depth) * 0x1p-96f; }

  static float power_of_two(int exponent) {
    const uint32_t bits = static_cast<uint32_t>(exponent + 127) << 23;
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
  }
};

// Writes tiles of sums to where they belong.
//
// `packed` and `streamed` are the operands; lanes of a tile are packed rows if `packed_across`.
class TileWriter {
 public:
  TileWriter(const Product& g, bool packs_left, bool packed_across, const PackedRows& rows,
             Magnitudes* seen)
      : g_(g),
        packs_left_(packs_left),
        across_(packed_across),
        rows_(rows),
        seen_(seen),
        packed_(packs_left ? g.left : g.right),
        streamed_(packs_left ? g.right : g.left) {}

  // The panel of streamed rows from here on; what was seen of the one before is forgotten.
  void begin(int64_t first, int64_t count) {
    first_ = first;
    for (int64_t i = 0; i < count; ++i) seen_[i].least = -1.0f;
  }

  // `p` and `s` are the first packed row and the first streamed one, `local` the packed row's place
  // among those that are packed.
  void write(const float* sums, int64_t p, int64_t s, int64_t local) {
    place(sums, packs_left_ ? p : s, packs_left_ ? s : p, rows_.back + local);
    if (!all_hold(sums, local)) mend(sums, p, s, local);
  }

 private:
  // Whether all sums are well above what may be lost, and finite.
  bool all_hold(const float* sums, int64_t local) const {
    constexpr float kMost = std::numeric_limits<float>::max();
    const float* const floor = rows_.floor + local;
    Lanes low = load_lanes(floor);
    Pairs fine = Pairs{} + 0xffffffffu;
    for (int i = 0; i < kSide; ++i) {
      const Pairs bits = reinterpret_cast<Pairs>(load_lanes(sums + i * kSide)) & 0x7fffffffu;
      const Lanes size = reinterpret_cast<Lanes>(bits);
      if (!across_) low = Lanes{} + floor[i];
      fine &= reinterpret_cast<Pairs>(size >= low) & reinterpret_cast<Pairs>(size <= kMost);
    }
    uint32_t every = 0xffffffffu;
    for (int i = 0; i < kSide; ++i) every &= fine[i];
    return every != 0;
  }

  // Makes again what may have lost something.
  void mend(const float* sums, int64_t p, int64_t s, int64_t local) {
    const int64_t packed = std::min<int64_t>(kSide, packed_.rows - p);
    const int64_t streamed = std::min<int64_t>(kSide, streamed_.rows - s);
    for (int64_t i = 0; i < packed; ++i) {
      for (int64_t j = 0; j < streamed; ++j) {
        if (holds(sums[across_ ? j * kSide + i : i * kSide + j], local + i, s + j)) continue;
        const int64_t row = packs_left_ ? p + i : s + j;
        const int64_t column = packs_left_ ? s + j : p + i;
        const float x = one_product(g_.left, row, g_.right, column, g_.depth);
        g_.out[row * g_.right.rows + column] = g_.bias ? x + g_.bias[column] : x;
      }
    }
  }

  // Whether a sum, of a scaled row, is what it should be.
  bool holds(float x, int64_t local, int64_t s) {
    constexpr float kInf = std::numeric_limits<float>::infinity();
    const float size = x < 0.0f ? -x : x;
    if (!(size < kInf)) return false;
    if (size >= rows_.floor[local]) return true;
    Magnitudes& seen = seen_[s - first_];
    if (seen.least < 0.0f) seen = magnitudes(streamed_, s, g_.depth);
    if (rows_.least[local] * 0x1p40f * seen.least >= 0x1p-40f) return true;
    return size >= PackedRows::lost(g_.depth) * std::max(1.0f, seen.largest);
  }

  // A tile from row i and column j of the results on, each packed row times its factor.
  void place(const float* sums, int64_t i, int64_t j, const float* back) const {
    alignas(64) float other[kTile];
    if (packs_left_ == across_) {
      turn_tile_of_pairs(reinterpret_cast<const uint32_t*>(sums),
                         reinterpret_cast<uint32_t*>(other));
      sums = other;
    }
    const int64_t rows = std::min<int64_t>(kSide, g_.left.rows - i);
    const int64_t columns = std::min<int64_t>(kSide, g_.right.rows - j);
    Lanes factor = load_lanes(back);
    const Lanes bias = g_.bias ? load_first(g_.bias + j, columns) : Lanes{};
    for (int64_t r = 0; r < rows; ++r) {
      if (packs_left_) factor = Lanes{} + back[r];
      const Lanes x = load_lanes(sums + r * kSide) * factor + bias;
      store_first(g_.out + (i + r) * g_.right.rows + j, x, columns);
    }
  }

  const Product& g_;
  const bool packs_left_;
  const bool across_;
  const PackedRows rows_;
  Magnitudes* const seen_;
  const Matrix packed_;
  const Matrix streamed_;
  int64_t first_ = 0;
};

// A product in thirds. The side with fewer rows is packed, so many of them at once, for all
// threads; each thread streams rows of the other side, a block of the depth of two tiles at a time.
class Thirds {
 public:
  explicit Thirds(const Product& g)
      : g_(g),
        packs_left_(g.left.rows <= g.right.rows),
        packed_(packs_left_ ? g.left : g.right),
        streamed_(packs_left_ ? g.right : g.left),
        upright_(streamed_.depth == 1),
        blocks_((g.depth + kDepthBlock - 1) / kDepthBlock) {}

  void run(int threads) {
    static thread_local Room kept;
    const int64_t tiles = tiles_of(std::min(packed_.rows, kChunk));
    const int64_t bytes = tiles * blocks_ * kDeepSteps * kStep * 4;
    auto* const memory = static_cast<char*>(kept.bytes(bytes + 4 * tiles * kSide * 4));
    pairs_ = reinterpret_cast<uint32_t*>(memory);
    auto* const numbers = reinterpret_cast<float*>(memory + bytes);
    const int64_t side = tiles * kSide;
    rows_ = {numbers, numbers + side, numbers + 2 * side, numbers + 3 * side};
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
      const TileRegisters registers;
      for (int64_t first = 0; first < packed_.rows; first += kChunk) {
        const int64_t count = std::min(kChunk, packed_.rows - first);
        const int64_t own = tiles_of(count);
#pragma omp for schedule(static)
        for (int64_t t = 0; t < own; ++t) measure(first, t);
#pragma omp for collapse(2) schedule(static)
        for (int64_t b = 0; b < blocks_; ++b) {
          for (int64_t t = 0; t < own; ++t) pack(first, b, t, own);
        }
        stream(first, own);
        if (first + kChunk < packed_.rows) {
#pragma omp barrier
        }
      }
    }
  }

 private:
  static int64_t tiles_of(int64_t rows) { return (rows + kSide - 1) / kSide; }
  int64_t steps_of(int64_t block) const {
    return (std::min(kDepthBlock, g_.depth - block * kDepthBlock) + kPaired - 1) / kPaired;
  }

  void measure(int64_t first, int64_t tile) const {
    const int64_t r = first + tile * kSide;
    Magnitudes found[kSide];
    if (packed_.row == 1 && r + kSide <= packed_.rows) {
      magnitudes_beside(packed_, r, g_.depth, found);
    } else {
      for (int64_t i = 0; i < kSide; ++i) {
        const bool there = r + i < packed_.rows;
        found[i] = there ? magnitudes(packed_, r + i, g_.depth) : Magnitudes{1.0f, 0.0f};
      }
    }
    for (int64_t i = 0; i < kSide; ++i) rows_.set(tile * kSide + i, found[i], g_.depth);
  }

  void pack(int64_t first, int64_t block, int64_t tile, int64_t tiles) const {
    for (int64_t s = 0; s < steps_of(block); ++s) {
      uint32_t* const to = pairs_ + ((block * tiles + tile) * kDeepSteps + s) * kStep;
      const int64_t r = first + tile * kSide;
      const int64_t k = block * kDepthBlock + s * kPaired;
      const float* const scales = rows_.scale + tile * kSide;
      if (upright_) {
        pack_tile<false>(packed_, r, k, g_.depth, scales, to);
      } else {
        pack_tile<true>(packed_, r, k, g_.depth, scales, to);
      }
    }
  }

  // The streamed rows of one thread, against the packed ones from `first` on.
  void stream(int64_t first, int64_t tiles) const {
    static thread_local Room kept;
    const Share own(streamed_.rows, kSide, team_part(), team_parts());
    if (own.begin == own.end) return;
    // Where all packed rows stay in the second-level cache, memory is read along the depth.
    const bool close = tiles * blocks_ * kHalf * 4 <= kClose;
    const int64_t side = tiles <= kThin ? kSide : 2 * kSide;
    const int64_t most = close ? side : kPanel;
    const int64_t panel = std::min(most, tiles_of(own.end - own.begin) * kSide);
    const int64_t sums_bytes = tiles * panel * kSide * 4;
    const int64_t unit_bytes = 2 * kUnit * 4;
    const int64_t seen_bytes = panel * static_cast<int64_t>(sizeof(Magnitudes));
    auto* const memory = static_cast<char*>(kept.bytes(unit_bytes + sums_bytes + seen_bytes));
    auto* const unit = reinterpret_cast<uint32_t*>(memory);
    auto* const sums = reinterpret_cast<float*>(memory + unit_bytes);
    auto* const seen = reinterpret_cast<Magnitudes*>(memory + unit_bytes + sums_bytes);
    TileWriter writer(g_, packs_left_, upright_, rows_, seen);
    for (int64_t s = own.begin; s < own.end; s += panel) {
      const int64_t rows = std::min(panel, own.end - s);
      Unit at{s, 0};
      take(at, side, s, rows, unit).some(kAll);
      for (int64_t n = 0; at.block < blocks_; ++n) {
        const Unit next = after(at, side, s, rows);
        uint32_t* const here = unit + n % 2 * kUnit;
        Feed feed = take(next, side, s, rows, unit + (n + 1) % 2 * kUnit);
        float* const to = sums + (at.row - s) * tiles * kSide;
        if (tiles <= kThin) {
          multiply_few(here, at.block, tiles, to, feed);
        } else {
          multiply(here, at.row + kSide < s + rows, at.block, tiles, to, feed);
        }
        feed.some(kAll);
        at = next;
      }
      writer.begin(s, rows);
      for (int64_t t = 0; t < tiles; ++t) {
        for (int64_t u = 0; u < tiles_of(rows); ++u) {
          const float* const tile = sums + (u * tiles + t) * kTile;
          writer.write(tile, first + t * kSide, s + u * kSide, t * kSide);
        }
      }
    }
  }

  // Tiles of streamed rows over a block of the depth: two, or one at the end of a panel and where
  // few rows are packed.
  struct Unit {
    int64_t row;
    int64_t block;
  };

  Unit after(Unit at, int64_t side, int64_t first, int64_t rows) const {
    if (at.row + side < first + rows) return {at.row + side, at.block};
    return {first, at.block + 1};
  }

  // A unit into tiles: at once where it is not whole, else as fast as the feed is asked.
  Feed take(Unit at, int64_t side, int64_t first, int64_t rows, uint32_t* unit) const {
    Feed feed;
    if (at.block >= blocks_) return feed;
    const int64_t k = at.block * kDepthBlock;
    const int64_t count = tiles_of(std::min(side, first + rows - at.row));
    const bool dense = upright_ ? streamed_.depth == 1 : streamed_.row == 1;
    if (!dense || k + kDepthBlock > g_.depth || at.row + count * kSide > streamed_.rows) {
      for (int64_t t = 0; t < count; ++t) pack_streamed(at.row + t * kSide, k, unit + t * kHalf);
      return feed;
    }
    feed.from = streamed_.at(at.row, k);
    feed.to = unit;
    feed.left = count * kDeepSteps * kSide;
    const Unit next = after(at, side, first, rows);
    feed.ahead =
        next.block < blocks_ ? streamed_.at(next.row, next.block * kDepthBlock) - feed.from : 0;
    if (upright_) {
      feed.inner = kDeepSteps;
      feed.apart = kSide;
      feed.next_inner = kPaired;
      feed.to_inner = kStep;
      feed.next_line = streamed_.row;
      feed.to_group = kHalf - kTile;
    } else {
      feed.inner = count;
      feed.apart = kSide * streamed_.depth;
      feed.next_inner = kSide;
      feed.to_inner = kHalf;
      feed.next_line = streamed_.depth;
      feed.next_group = kSide * streamed_.depth;
      feed.to_group = kStep - kTile;
    }
    return feed;
  }

  void pack_streamed(int64_t r, int64_t k, uint32_t* to) const {
    for (int64_t end = std::min(k + kDepthBlock, g_.depth); k < end; k += kPaired, to += kStep) {
      if (upright_) {
        pack_tile<true>(streamed_, r, k, g_.depth, nullptr, to);
      } else {
        pack_tile<false>(streamed_, r, k, g_.depth, nullptr, to);
      }
    }
  }

  // A tile of streamed rows against the one or two packed ones that there are.
  void multiply_few(const uint32_t* unit, int64_t block, int64_t tiles, float* sums,
                    Feed& feed) const {
    const int64_t steps = steps_of(block);
    const int64_t lines = (feed.left + steps * 5 - 1) / (steps * 5);
    const uint32_t* const packed = pairs_ + block * tiles * kHalf;
    const auto with = upright_     ? tiles == 2 ? multiply_thin<true, 2> : multiply_thin<true, 1>
                      : tiles == 2 ? multiply_thin<false, 2>
                                   : multiply_thin<false, 1>;
    with(unit, packed, kHalf, steps, sums, block == 0, feed, lines);
  }

  // A unit of streamed rows against all packed ones: sums of tiles, those of a streamed tile
  // together.
  void multiply(const uint32_t* unit, bool two, int64_t block, int64_t tiles, float* sums,
                Feed& feed) const {
    const int64_t steps = steps_of(block);
    const int64_t batches = (tiles + 1) / 2 * steps * 6;
    const int64_t lines = (feed.left + batches - 1) / batches;
    const bool first = block == 0;
    for (int64_t t = 0; t < tiles; t += 2) {
      const uint32_t* const packed = pairs_ + (block * tiles + t) * kHalf;
      float* const here = sums + t * kTile;
      float* const below = here + tiles * kTile;
      const bool pair = t + 1 < tiles;
      if (upright_) {
        float* const to[4] = {here, here + kTile, below, below + kTile};
        const auto with = two    ? pair ? multiply_block<2, 2> : multiply_block<2, 1>
                          : pair ? multiply_block<1, 2>
                                 : multiply_block<1, 1>;
        with(unit, kHalf, packed, kHalf, steps, to, first, feed, lines);
      } else {
        float* const to[4] = {here, below, here + kTile, below + kTile};
        const auto with = two    ? pair ? multiply_block<2, 2> : multiply_block<1, 2>
                          : pair ? multiply_block<2, 1>
                                 : multiply_block<1, 1>;
        with(packed, kHalf, unit, kHalf, steps, to, first, feed, lines);
      }
    }
  }

  const Product& g_;
  const bool packs_left_;
  const Matrix packed_;
  const Matrix streamed_;
  const bool upright_;
  const int64_t blocks_;
  uint32_t* pairs_ = nullptr;
  PackedRows rows_{};
};

}  // namespace kw

#endif

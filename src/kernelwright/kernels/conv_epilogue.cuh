// A program on a slice of a convolution's results, while they lie in shared memory.
//
// The slice is a box of the output, so a program may walk it in any order: along places, across
// channels, window by window. Rows are parallel: a team of kLanes threads has a segment (or the
// row, where there are none) and kTeams teams have a row; they meet in shuffles. Without reductions
// every thread takes chunks of neighbouring places. Slices at the edge of the output hold places
// and channels that are none; nearly all slices are whole and ask for nothing. Rows that go on in
// other slices are stored as partial results, row by row: to this template they are like any
// others. Beside what program.cuh says, with a TileCursor in the place of its Cursor, the program
// provides
//   P::kVec, P::kEdgeVec               lanes of a chunk, and those of one in a slice at an edge
//   P::kLanes, P::kTeams               how threads lie over a row
//   P::kKeep, P::kUnroll               how a thread keeps its chunks from stage to stage, and how
//                                      many a loop has at once
//   P::kStoresFirst                    whether elements are stored with the first stage
//   P::kInRegisters                    whether its stages can be done before there is a slice
//                                      (conv_rows.cuh): elements are alike, rows are channels
//   P::kAcross                         the same (conv_across.cuh): rows are places, and elements
//                                      all channels
//   P::kHolds[I], P::held(I, fields)   whether the slice has something else after stage I, and what
//   P::kRows, P::kElements, P::kSegment    those of a slice
//   P::place(at), P::channel(at)       where in the slice a chunk begins, and in which channel
//   P::kPlaceStride, P::kChannelStride from one of its lanes to the next
//   P::finish(..., at)                 is told in which slice it is
//   P::begin(I, fields, results)       takes what the slice has for stage I
//   P::kReadsBeside, P::beside(fields, results)    whether an element reads other channels of the
//                                      slice too, results(n): that n channels further on
//   P::live(at)                        whether a slice has any rows at all
//   P::whole(at)                       whether all of its rows and elements exist
//   P::has_row(at), P::has_element(at) whether these do
#pragma once

#include <type_traits>

#include "conv_tile.cuh"
#include "program.cuh"

// Before a loop that is to be unrolled so many times on the device.
#ifdef __CUDA_ARCH__
#define KW_PRAGMA(text) _Pragma(#text)
#define KW_UNROLL(times) KW_PRAGMA(unroll(times))
#else
#define KW_UNROLL(times)
#endif

namespace kw {

// How a thread keeps its chunks from stage to stage. Registers take loops apart, and code that runs
// once a tile is bound by fetching it: only short programs do that. The slice keeps one number an
// element. Otherwise earlier stages are gone through again.
enum class Keep { kRegisters, kSlice, kAgain };

// Where a program is: the slice's first sample, channel and place, and the row and element in it.
struct TileCursor {
  int64_t sample;
  int channel;
  int z;
  int y;
  int x;
  int row;
  int element;
};

// The address of an element that is `near` its buffer's first one, or that of its sample. Compilers
// take sums of signed numbers apart and add 64 bits for each of them; these are two instructions,
// or three.
template <class T>
KW_FN T* element_at(T* first, int near) {
  return first + static_cast<uint32_t>(near);
}

template <class T>
KW_FN T* element_at(T* first, int64_t sample, int near) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  Byte* const of_sample = reinterpret_cast<Byte*>(first) + sample * static_cast<int64_t>(sizeof(T));
  return reinterpret_cast<T*>(of_sample + static_cast<uint32_t>(near) * uint32_t{sizeof(T)});
}

// Combine over Width neighbouring threads of a warp; everyone gets the result.
template <Combine C, int Width>
KW_FN float reduce_neighbours(float x) {
  static_assert(Width <= 32, "a team is part of a warp");
#ifdef __CUDA_ARCH__
  KW_LANES
  for (int offset = Width / 2; offset > 0; offset /= 2) {
    x = combine<C>(x, __shfl_xor_sync(0xffffffff, x, offset));
  }
#elif !defined(__CUDACC__)
  static_assert(Width == 1, "on the host a row has one thread");
#endif
  return x;
}

// V neighbours of a chunk in shared memory, which lie kStride apart.
template <int V, int kStride>
KW_FN Vec<V> load_slice(const float* from) {
#ifdef __CUDACC__
  constexpr bool kPacked = kStride == 1;
  using Items = Pack<float, kPacked ? V : 1>;
#else
  constexpr bool kPacked = false;
  struct Items {
    float items[V];
  };
#endif
  Vec<V> found;
  if constexpr (kPacked) {
    const Items pack = *reinterpret_cast<const Items*>(from);
    KW_LANES
    for (int v = 0; v < V; ++v) found.lanes[v] = pack.items[v];
  } else {
    KW_LANES
    for (int v = 0; v < V; ++v) found.lanes[v] = from[v * kStride];
  }
  return found;
}

// Stores of a program never change what it loads, which the compiler cannot know: between chunks
// each load would wait for the store before it, and parameters be loaded for every chunk anew. So
// stores clobber nothing, and loads are those of constants.
#ifdef __CUDACC__
template <class P>
KW_FN void write_away(P* at, const P& pack) {
#ifdef __CUDA_ARCH__
  uint32_t w[4] = {};
  __builtin_memcpy(w, &pack, sizeof pack);
  if constexpr (sizeof pack == 16) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(w[0]), "r"(w[1]),
                 "r"(w[2]), "r"(w[3]));
  } else if constexpr (sizeof pack == 8) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(at), "r"(w[0]), "r"(w[1]));
  } else if constexpr (sizeof pack == 4) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(at), "r"(w[0]));
  } else {
    *at = pack;
  }
#endif
}

template <int V, class T>
struct AwayOut : RowOut<V, T> {
  KW_FN void commit() const {
    Pack<T, V> pack;
    KW_LANES
    for (int v = 0; v < V; ++v) pack.items[v] = from_float<T>(this->lanes.lanes[v]);
    write_away(reinterpret_cast<Pack<T, V>*>(this->at), pack);
  }
};

template <int V, class T>
KW_FN AwayOut<V, T> store_away(T* at) {
  return {{at, {}}};
}

// What nobody reads again: it does not displace parameters from the L1 cache.
template <int V, class T>
KW_FN Vec<V> load_ahead(const T* at) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) * V == 16) {
    uint32_t w[4];
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
        : "l"(at));
    Pack<T, V> pack;
    __builtin_memcpy(&pack, w, sizeof w);
    Vec<V> out;
    KW_LANES
    for (int v = 0; v < V; ++v) out.lanes[v] = to_float(pack.items[v]);
    return out;
  }
#endif
  return load_row<V>(at);
}
#endif

#ifndef __CUDACC__
template <int V, class T>
KW_FN auto store_away(T* at) {
  return store_row<V>(at);
}

template <int V, class T>
KW_FN auto load_ahead(const T* at) {
  return load_row<V>(at);
}
#endif

template <int V, class T>
KW_FN Vec<1> load_constant(const T* at) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 4) {
    uint32_t bits;
    asm("ld.global.nc.u32 %0, [%1];" : "=r"(bits) : "l"(at));
    T found;
    __builtin_memcpy(&found, &bits, sizeof found);
    return {{to_float(found)}};
  }
#endif
  return load_same<V>(at);
}

// Whether a convolution's sums are still where they were when a stage begins.
template <class P>
KW_FN constexpr bool has_sums(int stage) {
  for (int i = 0; i < stage; ++i) {
    if (P::kHolds[i]) return false;
  }
  return true;
}

// What the stages before I make of an element's fields.
template <class P, int I, class Fields>
KW_FN void go_through(Fields& f, const typename P::template Scalars<1>& s,
                      const typename P::Args& a, const TileCursor& at) {
  if constexpr (I > 0) {
    go_through<P, I - 1>(f, s, a, at);
    P::contribution(Stage<I - 1>{}, f, s, a, at);
  }
}

// The fields of an element whose sum is in a register, as stage I finds them: the sum, or what was
// kept in its place.
template <class P, int I>
KW_FN typename P::template Fields<1> fields_of(float sum, float scale,
                                               const typename P::template Scalars<1>& s,
                                               const typename P::Args& a, const TileCursor& at) {
  typename P::template Fields<1> f;
  if constexpr (P::kKeep == Keep::kSlice) {
    P::begin(Stage<I>{}, f, Vec<1>{{has_sums<P>(I) ? sum * scale : sum}});
  } else {
    P::begin(Stage<0>{}, f, Vec<1>{{sum * scale}});
    go_through<P, I>(f, s, a, at);
  }
  return f;
}

// One thread's part of a row of the slice: kOwned segments, kChunks chunks of each.
template <class P, class C, bool kWhole>
struct TileRow {
  static constexpr int V = kWhole ? P::kVec : P::kEdgeVec;
  static constexpr int kSegment = P::kSegment ? P::kSegment : P::kElements;
  static constexpr int kSegments = P::kElements / kSegment;
  static constexpr int kOwned = (kSegments + P::kTeams - 1) / P::kTeams;
  static constexpr int kChunks = (kSegment + P::kLanes * V - 1) / (P::kLanes * V);
  static constexpr bool kKeeps = P::kKeep == Keep::kRegisters;
  static constexpr int kHeld = kKeeps ? kChunks : 1;
  static constexpr int kAtOnce = kKeeps ? kChunks : P::kUnroll;
  static constexpr bool kExact = kSegments % P::kTeams == 0 && kSegment % (P::kLanes * V) == 0;

  const typename P::Args& a;
  const ConvTile<C>& tile;
  TileCursor at;
  int lane;
  int team;
  bool there;  // or it stands in for a row that is none, and writes nothing
  typename P::template Fields<V> f[kOwned][kHeld];
  typename P::template Scalars<1> s[kOwned];

  KW_FN bool move_to(int q, int c) {
    at.element = (q * P::kTeams + team) * kSegment + (c * P::kLanes + lane) * V;
    const bool inside =
        kExact || (q * P::kTeams + team < kSegments && (c * P::kLanes + lane) * V < kSegment);
    return inside && (kWhole || P::has_element(at));
  }

  // What the slice has so many channels behind the chunk's.
  template <int I>
  KW_FN Vec<V> results(int further) const {
    Vec<V> found = load_slice<V, P::kPlaceStride>(tile.at + P::place(at) + further * C::kTilePitch);
    if constexpr (C::kUnscaled != 0 && has_sums<P>(I)) {
      const int channel = P::channel(at) + further;
      KW_LANES
      for (int v = 0; v < V; ++v) {
        found.lanes[v] *= tile.scale(channel + v * P::kChannelStride);
      }
    }
    return found;
  }

  template <int I>
  KW_FN void take(typename P::template Fields<V>& fields) const {
    P::begin(Stage<I>{}, fields, results<I>(0));
    if constexpr (P::kReadsBeside) {
      P::beside(fields, [&](int further) { return results<I>(further); });
    }
  }

  template <int I>
  KW_FN void hold(const typename P::template Fields<V>& fields) const {
    if constexpr (P::kHolds[I]) {
      if (!there) return;
      const Vec<V> held = P::held(Stage<I>{}, fields);
      float* const to = tile.at + P::place(at);
      KW_LANES
      for (int v = 0; v < V; ++v) to[v * P::kPlaceStride] = held.lanes[v];
    }
  }

  // A chunk's fields as stage I finds them; kept ones are there.
  template <int I>
  KW_FN typename P::template Fields<V>& fields(int q, int c) {
    if constexpr (kKeeps) return f[q][c];
    if constexpr (P::kKeep == Keep::kSlice) {
      take<I>(f[q][0]);
    } else {
      take<0>(f[q][0]);
      go_through<P, I>(f[q][0], s[q], a, at);
    }
    return f[q][0];
  }

  // Sums are made of blocks: the steps from an element to the total are few then, and a mean of
  // numbers that differ little keeps its last bits.
  template <int I>
  KW_FN float share(int q) {
    constexpr Combine kOp = P::kCombine[I];
    constexpr int kBlock = kOp != Combine::kSum ? kChunks : kAtOnce < 4 ? 4 : kAtOnce;
    float total = identity<kOp>();
    float block = identity<kOp>();
    KW_UNROLL(kAtOnce)
    for (int c = 0; c < kChunks; ++c) {
      if (kBlock < kChunks && c % kBlock == 0) {
        total = combine<kOp>(total, block);
        block = identity<kOp>();
      }
      if (!move_to(q, c)) continue;
      auto& own = fields<I>(q, c);
      const Vec<V> x = P::contribution(Stage<I>{}, own, s[q], a, at);
      if constexpr (P::kStoresFirst && I == 0) {
        if (there) P::store_elements(own, s[q], a, at);
      }
      hold<I>(own);
      block = combine<kOp>(block, combine_lanes<kOp>(x));
    }
    return kBlock < kChunks ? combine<kOp>(total, block) : block;
  }

  template <int I>
  KW_FN void stages() {
    if constexpr (I < P::kStages) {
      constexpr Combine kOp = P::kCombine[I];
      if constexpr (P::kOverSegment[I]) {
        KW_UNROLL(kOwned)
        for (int q = 0; q < kOwned; ++q) {
          const float total = reduce_neighbours<kOp, P::kLanes>(share<I>(q));
          P::finish(Stage<I>{}, s[q], Vec<1>{{total}}, a, at);
        }
      } else {
        float total = identity<kOp>();
        KW_UNROLL(kOwned)
        for (int q = 0; q < kOwned; ++q) total = combine<kOp>(total, share<I>(q));
        const Vec<1> all{{reduce_neighbours<kOp, P::kLanes * P::kTeams>(total)}};
        KW_UNROLL(kOwned)
        for (int q = 0; q < kOwned; ++q) P::finish(Stage<I>{}, s[q], all, a, at);
      }
      stages<I + 1>();
    }
  }

  KW_FN void load() {
    if constexpr (kKeeps) {
      KW_UNROLL(kOwned)
      for (int q = 0; q < kOwned; ++q) {
        KW_UNROLL(kChunks)
        for (int c = 0; c < kChunks; ++c) {
          if (move_to(q, c)) take<0>(f[q][c]);
        }
      }
    }
  }

  KW_FN void store() {
    KW_UNROLL(kOwned)
    for (int q = 0; q < kOwned; ++q) {
      if constexpr (P::kStoresElements && !P::kStoresFirst) {
        KW_UNROLL(kAtOnce)
        for (int c = 0; c < kChunks; ++c) {
          if (move_to(q, c)) P::store_elements(fields<P::kStages>(q, c), s[q], a, at);
        }
      }
      if constexpr (P::kStoresSegments) {
        if (lane == 0 && move_to(q, 0)) P::store_segment(s[q], a, at);
      }
    }
    at.element = 0;
    if (lane == 0 && team == 0) P::store_row(s[0], a, at);
  }
};

template <class P, class C>
struct ConvEpilogue {
  static constexpr int kThreads = C::kEpilogueThreads;
  static constexpr int kRowThreads = P::kLanes * P::kTeams;
  static_assert(kThreads % kRowThreads == 0, "teams must fill the threads");

  const typename P::Args& a;

  KW_FN void run(const ConvTile<C>& tile, int thread) const {
    walk<(P::kStages > 0)>(tile, thread);
  }

  // The same where the stages have been done elsewhere.
  KW_FN void store(const ConvTile<C>& tile, int thread) const { walk<false>(tile, thread); }

 private:
  template <bool kReduces>
  KW_FN void walk(const ConvTile<C>& tile, int thread) const {
    const TileCursor at{tile.sample, tile.channel, tile.z, tile.y, tile.x, 0, 0};
    if (!P::live(at)) return;
    if (P::whole(at)) {
      walk<kReduces, true>(tile, at, thread);
    } else {
      walk<kReduces, false>(tile, at, thread);
    }
  }

  template <bool kReduces, bool kWhole>
  KW_FN void walk(const ConvTile<C>& tile, const TileCursor& at, int thread) const {
    if constexpr (kReduces) {
      rows<kWhole>(tile, at, thread);
    } else {
      elements<kWhole>(tile, at, thread);
    }
  }

  // Threads that lie across a row go down the rows together: what they compute of a place or of a
  // channel they compute once. Where too many of them would be idle they lie across all rows.
  template <bool kWhole>
  KW_FN void elements(const ConvTile<C>& tile, const TileCursor& first, int thread) const {
    constexpr int V = TileRow<P, C, kWhole>::V;
    constexpr int kChunks = P::kElements / V;
    constexpr int kAcross = across(kChunks, V);
    constexpr int kTimes = (kChunks + kAcross - 1) / kAcross;
    constexpr int kDown = kThreads / kAcross;  // rows at once
    TileRow<P, C, kWhole> row{a, tile, first, 0, 0, true, {}, {}};
    const auto take = [&](int r, int n) {
      const int chunk = n * kAcross + thread % kAcross;
      row.at.row = r;
      row.at.element = chunk * V;
      if (kChunks % kAcross != 0 && chunk >= kChunks) return;
      if (kWhole || P::has_element(row.at)) element<kWhole>(row);
    };
    if constexpr (20 * kChunks < 17 * taken(kChunks, kAcross)) {
      KW_UNROLL(dividing(P::kRows * kChunks))
      for (int i = thread; i < P::kRows * kChunks; i += kThreads) {
        row.at.row = i / kChunks;
        row.at.element = i % kChunks * V;
        if (kWhole || P::has_element(row.at)) element<kWhole>(row);
      }
    } else if constexpr (kTimes <= P::kUnroll) {
      KW_UNROLL(P::kUnroll / kTimes)
      for (int r = thread / kAcross; r < P::kRows; r += kDown) {
        KW_UNROLL(kTimes)
        for (int n = 0; n < kTimes; ++n) take(r, n);
      }
    } else {
      KW_UNROLL(1)
      for (int n = 0; n < kTimes; ++n) {
        KW_UNROLL(P::kUnroll)
        for (int r = thread / kAcross; r < P::kRows; r += kDown) take(r, n);
      }
    }
  }

  // What so many threads across take for a row's chunks.
  KW_FN static constexpr int taken(int chunks, int across) {
    return (chunks + across - 1) / across * across;
  }

  // How many of a loop's turns are taken at once: so many that none are left over, if there are.
  KW_FN static constexpr int dividing(int chunks) {
    const int turns = chunks / kThreads;
    for (int n = P::kUnroll; chunks % kThreads == 0 && n > P::kUnroll / 2; --n) {
      if (turns % n == 0) return n;
    }
    return P::kUnroll;
  }

  // As many threads as a row has chunks of V, or the next power of two; all of them for longer
  // rows, or fewer where that leaves fewer of them idle: no fewer than half a warp, nor than store
  // a line.
  KW_FN static constexpr int across(int chunks, int V) {
    int threads = 1;
    while (threads < chunks && threads < kThreads) threads *= 2;
    int best = threads;
    for (; threads >= 16 && threads * V >= 32; threads /= 2) {
      if (taken(chunks, threads) < taken(chunks, best)) best = threads;
    }
    return best;
  }

  template <bool kWhole>
  KW_FN void element(TileRow<P, C, kWhole>& row) const {
    if (!kWhole && !P::has_row(row.at)) return;
    row.template take<0>(row.f[0][0]);
    go_through<P, P::kStages>(row.f[0][0], row.s[0], a, row.at);
    P::store_elements(row.f[0][0], row.s[0], a, row.at);
  }

  // Rows of so many chunks that a thread goes through at once.
  KW_FN static constexpr int side_by_side(int chunks) {
    if (chunks > 1 && (kRowThreads > 1 || 2 * chunks > P::kUnroll)) return 1;
    return P::kUnroll / chunks;
  }

  // Teams without a row repeat the first one and store nothing: everyone takes part in the
  // shuffles. The first row of a slice that is alive exists.
  template <bool kWhole>
  KW_FN void rows(const ConvTile<C>& tile, const TileCursor& first, int thread) const {
    using Row = TileRow<P, C, kWhole>;
    constexpr int kAtOnce = kThreads / kRowThreads;
    // Rows for whole warps, so that the threads of a warp go through as many. Rows of few chunks
    // wait for their loads side by side.
    constexpr int kTimes = (P::kRows + kAtOnce - 1) / kAtOnce;
    KW_UNROLL(side_by_side(Row::kOwned * Row::kChunks))
    for (int n = 0; n < kTimes; ++n) {
      const int r = n * kAtOnce + thread / kRowThreads;
      Row row{a, tile, first, thread % P::kLanes, thread / P::kLanes % P::kTeams, true, {}, {}};
      row.at.row = r;
      row.there = r < P::kRows && (kWhole || P::has_row(row.at));
      if (kRowThreads == 1 && !row.there) continue;
      if (!row.there) row.at.row = 0;
      row.load();
      row.template stages<0>();
      if (row.there) row.store();
    }
  }
};

}  // namespace kw

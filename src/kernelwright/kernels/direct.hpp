// A convolution in two dimensions on the CPU, for those with so little work that the library spends
// more on getting ready than on the sums.
//
// Lanes lie along places of the result, and each number of the weight is broadcast: so the weight
// is read as it lies, once for a tile, and nothing of it is packed. The input is copied first, into
// planes with their padding, one for each residue of the strides: there the places of a result lie
// side by side for every tap, rows behind one another, and a tile neither asks for an edge nor
// knows of rows. Small planes of several samples lie below one another, so that they fill a tile.
// What a row has more than the result does is computed and dropped. A sum begins anew every kTerms
// products, so that it is as accurate as the library's.
#pragma once

#include <string.h>

#include <algorithm>
#include <new>

#include "tile.hpp"

namespace kw {

inline constexpr int kMostTaps = 256;
inline constexpr int kMostSteps = 16;
inline constexpr int kTerms = 96;
// Products for which it pays to wake another thread.
inline constexpr int64_t kWorthWaking = 100000;

struct Places {
  int64_t down;
  int64_t across;
};

// `inside` channels of each group become `filters`; the weight lies [filter][channel][tap].
struct DirectConv {
  const float* x;
  const float* weight;
  const float* bias;
  float* out;
  int64_t samples;
  int64_t groups;
  int64_t inside;
  int64_t filters;
  Places in;
  Places result;
  Places window;
  Places stride;
  Places dilation;
  Places padding;
};

// The planes of one channel, `size` numbers: in each `rows` of a `pitch` for each of `together`
// samples. For every tap where its first place is. No plane of a residue that no tap has.
struct PaddedPlanes {
  int64_t together;
  int64_t rows;
  int64_t pitch;
  int64_t size;
  Places plane_of[kMostSteps];
  int64_t planes_across;
  int64_t tap[kMostTaps];

  explicit PaddedPlanes(const DirectConv& g) {
    const int64_t last_down = (g.window.down - 1) * g.dilation.down;
    const int64_t last_across = (g.window.across - 1) * g.dilation.across;
    rows = g.result.down + last_down / g.stride.down;
    pitch = g.result.across + last_across / g.stride.across;
    for (int i = 0; i < kMostSteps; ++i) plane_of[i] = {-1, -1};
    int64_t down = 0;
    planes_across = 0;
    for (int64_t r = 0; r < g.window.down; ++r) {
      int64_t& plane = plane_of[r * g.dilation.down % g.stride.down].down;
      if (plane < 0) plane = down++;
    }
    for (int64_t r = 0; r < g.window.across; ++r) {
      int64_t& plane = plane_of[r * g.dilation.across % g.stride.across].across;
      if (plane < 0) plane = planes_across++;
    }
    constexpr int64_t kFull = kTileWidth;
    together = std::max<int64_t>(1, std::min(g.samples, kFull / (rows * pitch)));
    size = down * planes_across * together * rows * pitch;
    int64_t* next = tap;
    for (int64_t r = 0; r < g.window.down; ++r) {
      for (int64_t q = 0; q < g.window.across; ++q) {
        const int64_t y = r * g.dilation.down;
        const int64_t x = q * g.dilation.across;
        *next++ = begin(y % g.stride.down, x % g.stride.across) + y / g.stride.down * pitch +
                  x / g.stride.across;
      }
    }
  }

  int64_t begin(int64_t y, int64_t x) const {
    return (plane_of[y].down * planes_across + plane_of[x].across) * together * rows * pitch;
  }
};

inline void copy_padded(const DirectConv& g, const PaddedPlanes& planes, const float* from,
                        float* to) {
  for (int64_t y = 0; y < g.stride.down; ++y) {
    for (int64_t x = 0; x < g.stride.across; ++x) {
      if (planes.plane_of[y].down < 0 || planes.plane_of[x].across < 0) continue;
      float* row = to + planes.begin(y, x);
      const int64_t step = g.stride.across;
      const int64_t shift = x - g.padding.across;
      const int64_t end = std::max<int64_t>(0, (g.in.across - 1 - shift + step) / step);
      const int64_t stop = std::min(planes.pitch, end);
      const int64_t first = std::min(stop, shift < 0 ? (-shift + step - 1) / step : 0);
      for (int64_t r = 0; r < planes.rows; ++r, row += planes.pitch) {
        const int64_t source = r * g.stride.down + y - g.padding.down;
        if (source < 0 || source >= g.in.down) {
          memset(row, 0, planes.pitch * sizeof(float));
          continue;
        }
        const float* line = from + source * g.in.across + shift;
        memset(row, 0, first * sizeof(float));
        if (step == 1) {
          memcpy(row + first, line + first, (stop - first) * sizeof(float));
        } else {
          for (int64_t q = first; q < stop; ++q) row[q] = line[q * step];
        }
        memset(row + stop, 0, (planes.pitch - stop) * sizeof(float));
      }
    }
  }
}

// Sums of F filters for P vectors of places, added to what is there.
template <int F, int P>
void sum_tile(const float* x, int64_t plane, const int64_t* tap, int64_t taps, int64_t channels,
              const float* weight, int64_t filter, float* sums) {
  Lanes sum[F][P];
  for (int f = 0; f < F; ++f) {
    for (int p = 0; p < P; ++p) sum[f][p] = Lanes{};
  }
  for (int64_t c = 0; c < channels; ++c, x += plane, weight += taps) {
    for (int64_t t = 0; t < taps; ++t) {
      Lanes seen[P];
      for (int p = 0; p < P; ++p) {
        seen[p] = *reinterpret_cast<const LanesAnywhere*>(x + tap[t] + p * kLanes);
      }
      for (int f = 0; f < F; ++f) {
        const float w = weight[f * filter + t];
        for (int p = 0; p < P; ++p) sum[f][p] += seen[p] * w;
      }
    }
  }
  for (int f = 0; f < F; ++f) {
    for (int p = 0; p < P; ++p) {
      *reinterpret_cast<LanesAnywhere*>(sums + (f * P + p) * kLanes) += sum[f][p];
    }
  }
}

typedef void (*SumTile)(const float*, int64_t, const int64_t*, int64_t, int64_t, const float*,
                        int64_t, float*);

template <int P>
SumTile tile_of(int64_t filters) {
  constexpr SumTile kTiles[] = {sum_tile<1, P>, sum_tile<2, P>, sum_tile<3, P>,
                                sum_tile<4, P>, sum_tile<5, P>, sum_tile<6, P>};
  return kTiles[filters - 1];
}

// One tile: `filters` from the first on, `vectors` of places from `place` on.
template <int P>
void convolve_tile(const DirectConv& g, const PaddedPlanes& planes, const float* x, int64_t group,
                   int64_t first, int64_t filters, int64_t place, int64_t span, float* out) {
  alignas(64) float sums[kTileRows * P * kLanes];
  const int64_t taps = g.window.down * g.window.across;
  const int64_t filter = g.inside * taps;
  const float* weight = g.weight + (group * g.filters + first) * filter;
  constexpr int64_t kWidth = P * kLanes;
  for (int64_t f = 0; f < filters; ++f) {
    const float start = g.bias ? g.bias[group * g.filters + first + f] : 0.0f;
    for (int64_t i = 0; i < kWidth; ++i) sums[f * kWidth + i] = start;
  }
  const int64_t at_once = std::max<int64_t>(1, kTerms / taps);
  const SumTile tile = tile_of<P>(filters);
  for (int64_t c = 0; c < g.inside; c += at_once) {
    tile(x + c * planes.size + place, planes.size, planes.tap, taps,
         std::min(at_once, g.inside - c), weight + c * taps, filter, sums);
  }
  const int64_t end = std::min(place + kWidth, span);
  const int64_t places = g.result.down * g.result.across;
  for (int64_t row = place / planes.pitch; row * planes.pitch < end; ++row) {
    const int64_t start = row * planes.pitch;
    const int64_t low = std::max(place, start);
    const int64_t high = std::min(end, start + g.result.across);
    const int64_t down = row % planes.rows;
    if (low >= high || down >= g.result.down) continue;
    float* to = out + row / planes.rows * g.groups * g.filters * places + down * g.result.across +
                low - start;
    for (int64_t f = 0; f < filters; ++f, to += places) {
      memcpy(to, sums + f * kWidth + low - place, (high - low) * sizeof(float));
    }
  }
}

inline void convolve(const DirectConv& g, int threads) {
  const PaddedPlanes planes(g);
  const int64_t stacks = (g.samples + planes.together - 1) / planes.together;
  const int64_t most = planes.together * planes.rows * planes.pitch;
  const int64_t tiles = (most + kTileWidth - 1) / (kTileWidth);
  const int64_t blocks = (g.filters + kTileRows - 1) / kTileRows;
  const int64_t places = g.result.down * g.result.across;
  const int64_t channels = g.groups * g.inside;
  const int64_t depth = g.inside * g.window.down * g.window.across;
  const int64_t work = g.samples * g.groups * g.filters * places * depth;
  const int workers = work < kWorthWaking ? 1 : threads;
  // A tile reads whole vectors, beyond the last place of the last channel.
  constexpr int64_t kBeyond = kTileWidth;
  const int64_t all = stacks * channels * planes.size;
  float* const padded = new float[all + kBeyond];
  memset(padded + all, 0, kBeyond * sizeof(float));
#pragma omp parallel num_threads(workers)
  {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < g.samples * channels; ++i) {
      const int64_t sample = i / channels;
      const int64_t stack = sample / planes.together;
      float* to = padded + (stack * channels + i % channels) * planes.size +
                  sample % planes.together * planes.rows * planes.pitch;
      copy_padded(g, planes, g.x + i * g.in.down * g.in.across, to);
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < stacks * g.groups * blocks * tiles; ++i) {
      const int64_t block = i / tiles % blocks;
      const int64_t group = i / (tiles * blocks) % g.groups;
      const int64_t stack = i / (tiles * blocks * g.groups);
      const int64_t first = g.filters * block / blocks;
      const int64_t filters = g.filters * (block + 1) / blocks - first;
      const int64_t sample = stack * planes.together;
      const int64_t samples = std::min(planes.together, g.samples - sample);
      const int64_t rows = (samples - 1) * planes.rows + g.result.down;
      const int64_t span = (rows - 1) * planes.pitch + g.result.across;
      const float* x = padded + (stack * channels + group * g.inside) * planes.size;
      float* out = g.out + ((sample * g.groups + group) * g.filters + first) * places;
      int64_t place = i % tiles * kTileWidth;
      const int64_t end = std::min(span, place + kTileWidth);
      while (place < end) {
        const int64_t vectors = (end - place + kLanes - 1) / kLanes;
        if (vectors >= kTileVectors) {
          convolve_tile<kTileVectors>(g, planes, x, group, first, filters, place, span, out);
          place += kTileWidth;
        } else if (vectors >= 2) {
          convolve_tile<2>(g, planes, x, group, first, filters, place, span, out);
          place += 2 * kLanes;
        } else {
          convolve_tile<1>(g, planes, x, group, first, filters, place, span, out);
          place += kLanes;
        }
      }
    }
  }
  delete[] padded;
}

}  // namespace kw

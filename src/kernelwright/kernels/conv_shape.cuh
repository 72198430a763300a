// The geometry of a generated convolution, all of it known when a kernel is compiled: tiles of the
// output, the halo of the input that a tile needs, and the list of chunks that are multiplied.
//
// A chunk is 16 bytes for each place: eight channels at one tap of the window, or, with fewer than
// eight channels, as many neighbouring taps of a row of the window as fit (kPack). A depth step of
// the tensor cores is two chunks, whichever follow one another in the list. 1-D and 2-D windows,
// strides, dilations, phases of a transposed convolution differ in this list alone.
//
// A transposed convolution falls apart into phases: results o with the same o mod stride meet the
// same taps of the window, and each phase is a convolution of stride 1 over the same input. `Place`
// below counts the results of a phase; without phases it counts results.
//
// A configuration C has constexpr ints. The convolution: kCin, kCout, kGroups, kMerge (so many
// groups are multiplied as one, with zeros between them), and, each for D, H and W, kIn, kOut,
// kKernel, kStride, kPad, kDilation; kTransposed. The tile of a warpgroup: kChannels channels and
// kDeep x kTall x kWide places, multiplied in kBlocksZ x kBlocksY x kBlocksX blocks of kRows rows
// of eight places; kAlongX: the eights lie in one row. The block's two warpgroups lie side by side
// along the axis whose kSplit is 2. A stage: kChunks chunks of channels. kWeightRing: so many
// stages of weights each warpgroup fetches ahead for itself. What the epilogue is given: kTile...,
// kEpilogueThreads; kUnscaled: sums without their channels' scales. kWindow...: it wants the
// largest of each window of so many results, and kTile... counts windows: kSeen... of them,
// kWindowStep... apart, of which the first begins kWindowPad... before the output. Where they
// overlap, tiles do: a window is one warpgroup's. kPhaseMax: it wants the largest result of the
// phases of each place, and kOut counts places.
//
// A convolution may be another one with the mean of each window of its results, kMean... of them
// along an axis (plan/averages.py). The weights in memory are the other one's: kOwnKernel... taps,
// which lie as a transposed one's do if kOwnTransposed is set. Tap r is the sum of those from
// kOwnFirst... + r * kOwnStep... on, as many as the window has, as far as they exist, divided by
// the window's size. Without windows there is one: the tap itself.
#pragma once

#include <cstdint>

#include "scalar.cuh"

namespace kw {

// One axis of the space.
struct ConvAxis {
  int in, out, kernel, stride, pad, dilation;
  int pack;
  bool transposed;
  bool pooled;  // `out` counts places, each the largest of its phases

  KW_FN constexpr int phases() const { return transposed ? stride : 1; }
  KW_FN constexpr int places() const { return pooled ? out : (out + phases() - 1) / phases(); }
  // Of the input, from one place to the next.
  KW_FN constexpr int step() const { return transposed ? 1 : stride; }

  // Transposed: whether the results of a phase meet a tap, and where in the input, seen from the
  // place.
  KW_FN constexpr bool meets(int phase, int tap) const {
    return (phase + pad - tap * dilation) % stride == 0;
  }
  KW_FN constexpr int shift(int phase, int tap) const {
    return (phase + pad - tap * dilation) / stride;
  }

  // How many chunks a row of the window is, in a phase.
  KW_FN constexpr int taps(int phase) const {
    if (!transposed) return (kernel + pack - 1) / pack;
    int count = 0;
    for (int t = 0; t < kernel; ++t) count += meets(phase, t) ? 1 : 0;
    return count;
  }
  // The first tap of the n-th of them, in ascending order of the input.
  KW_FN constexpr int tap(int phase, int n) const {
    if (!transposed) return n * pack;
    for (int t = kernel - 1; t >= 0; --t) {
      if (meets(phase, t) && n-- == 0) return t;
    }
    return 0;
  }
  // Of the input that a tile needs: its first coordinate, seen from step() * place, and how far it
  // reaches from there.
  KW_FN constexpr int first() const {
    if (!transposed) return -pad;
    int least = 1 << 30;
    for (int p = 0; p < stride; ++p) {
      for (int t = 0; t < kernel; ++t) {
        if (meets(p, t) && shift(p, t) < least) least = shift(p, t);
      }
    }
    return least;
  }
  KW_FN constexpr int reach() const {
    if (!transposed) return (taps(0) - 1) * pack * dilation;
    int most = -(1 << 30);
    for (int p = 0; p < stride; ++p) {
      for (int t = 0; t < kernel; ++t) {
        if (meets(p, t) && shift(p, t) > most) most = shift(p, t);
      }
    }
    return most - first();
  }
  // Where a tap is, seen from the first coordinate.
  KW_FN constexpr int offset(int phase, int tap) const {
    return transposed ? shift(phase, tap) - first() : tap * dilation;
  }
};

// The taps in memory that a tap of an axis is the sum of.
struct ConvTaps {
  int first, step, window, kernel;

  KW_FN constexpr int begin(int tap) const {
    const int at = first + tap * step;
    return at < 0 ? 0 : at;
  }
  KW_FN constexpr int end(int tap) const {
    const int at = first + tap * step + window;
    return at < kernel ? at : kernel;
  }
  KW_FN constexpr int most() const { return window < kernel ? window : kernel; }
};

// A chunk of a stage: where its places begin in the halo, which channels and which tap it is.
struct ConvChunk {
  int offset;
  int group;  // eight channels of the stage
  int tap[3];
  bool exists;  // or it stands in for the last one, so that there are pairs, and its weights are 0
};

// What follows from one axis alone.
template <class C>
struct ConvAxes : C {
  KW_FN static constexpr ConvAxis z_axis() {
    return {C::kInD,       C::kOutD, C::kKernelD,         C::kStrideD,      C::kPadD,
            C::kDilationD, 1,        C::kTransposed != 0, C::kPhaseMax != 0};
  }
  KW_FN static constexpr ConvAxis y_axis() {
    return {C::kInH,       C::kOutH, C::kKernelH,         C::kStrideH,      C::kPadH,
            C::kDilationH, 1,        C::kTransposed != 0, C::kPhaseMax != 0};
  }
  KW_FN static constexpr ConvAxis x_axis() {
    return {C::kInW,       C::kOutW, C::kKernelW,         C::kStrideW,      C::kPadW,
            C::kDilationW, C::kPack, C::kTransposed != 0, C::kPhaseMax != 0};
  }
  KW_FN static constexpr ConvTaps z_taps() {
    return {C::kOwnFirstD, C::kOwnStepD, C::kMeanD, C::kOwnKernelD};
  }
  KW_FN static constexpr ConvTaps y_taps() {
    return {C::kOwnFirstH, C::kOwnStepH, C::kMeanH, C::kOwnKernelH};
  }
  KW_FN static constexpr ConvTaps x_taps() {
    return {C::kOwnFirstW, C::kOwnStepW, C::kMeanW, C::kOwnKernelW};
  }
};

template <class Config>
struct ConvShape : ConvAxes<Config> {
  using C = Config;
  using A = ConvAxes<Config>;
  using A::x_axis;
  using A::y_axis;
  using A::z_axis;
  static constexpr int kStepZ = A::z_axis().step();
  static constexpr int kFirstZ = A::z_axis().first();
  static constexpr int kReachZ = A::z_axis().reach();
  static constexpr int kPhasesZ = A::z_axis().phases();
  static constexpr int kPlacesZ = A::z_axis().places();
  static constexpr int kStepY = A::y_axis().step();
  static constexpr int kFirstY = A::y_axis().first();
  static constexpr int kReachY = A::y_axis().reach();
  static constexpr int kPhasesY = A::y_axis().phases();
  static constexpr int kPlacesY = A::y_axis().places();
  static constexpr int kStepX = A::x_axis().step();
  static constexpr int kFirstX = A::x_axis().first();
  static constexpr int kReachX = A::x_axis().reach();
  static constexpr int kPhasesX = A::x_axis().phases();
  static constexpr int kPlacesX = A::x_axis().places();
  // Results of a place along each axis.
  static constexpr int kSpreadZ = C::kPhaseMax != 0 ? 1 : kPhasesZ;
  static constexpr int kSpreadY = C::kPhaseMax != 0 ? 1 : kPhasesY;
  static constexpr int kSpreadX = C::kPhaseMax != 0 ? 1 : kPhasesX;
  static constexpr int kSpread = kSpreadZ * kSpreadY * kSpreadX;
  // How many results are one of what the epilogue sees, and how far the next ones are.
  static constexpr int kLargestD = C::kPhaseMax != 0 ? kPhasesZ : C::kWindowD;
  static constexpr int kLargestH = C::kPhaseMax != 0 ? kPhasesY : C::kWindowH;
  static constexpr int kLargestW = C::kPhaseMax != 0 ? kPhasesX : C::kWindowW;
  static constexpr int kApartD = C::kPhaseMax != 0 ? kPhasesZ : C::kWindowStepD;
  static constexpr int kApartH = C::kPhaseMax != 0 ? kPhasesY : C::kWindowStepH;
  static constexpr int kApartW = C::kPhaseMax != 0 ? kPhasesX : C::kWindowStepW;
  // Whether windows reach beyond the last result; before the first one they reach by their pad.
  static constexpr bool kBeyondZ =
      (C::kSeenD - 1) * C::kWindowStepD - C::kWindowPadD + C::kWindowD > C::kOutD;
  static constexpr bool kBeyondY =
      (C::kSeenH - 1) * C::kWindowStepH - C::kWindowPadH + C::kWindowH > C::kOutH;
  static constexpr bool kBeyondX =
      (C::kSeenW - 1) * C::kWindowStepW - C::kWindowPadW + C::kWindowW > C::kOutW;
  static constexpr bool kEdges =
      C::kWindowPadD + C::kWindowPadH + C::kWindowPadW > 0 || kBeyondZ || kBeyondY || kBeyondX;
  static constexpr int kPack = C::kPack;
  static constexpr int kTaps = C::kKernelD * C::kKernelH * C::kKernelW;
  static constexpr int kOwnTaps = C::kOwnKernelD * C::kOwnKernelH * C::kOwnKernelW;
  static constexpr int kMean = C::kMeanD * C::kMeanH * C::kMeanW;

  // Groups that are multiplied, each with so many channels.
  static constexpr int kDenseGroups = C::kGroups / C::kMerge;
  static constexpr int kGroupIn = C::kCin / kDenseGroups;
  static constexpr int kGroupOut = C::kCout / kDenseGroups;
  static constexpr int kLaneChannels = 8 / kPack;  // channels of a chunk
  static constexpr int kAllChunks = (kGroupIn + kLaneChannels - 1) / kLaneChannels;
  static constexpr int kSteps = (kAllChunks + C::kChunks - 1) / C::kChunks;  // stages of a tile

  // Windows of a warpgroup's tile, or results where there are none, and after how many places the
  // next tile begins: less than it has where windows overlap.
  static constexpr int kWindowsZ = (C::kDeep * kSpreadZ - C::kWindowD) / C::kWindowStepD + 1;
  static constexpr int kWindowsY = (C::kTall * kSpreadY - C::kWindowH) / C::kWindowStepH + 1;
  static constexpr int kWindowsX = (C::kWide * kSpreadX - C::kWindowW) / C::kWindowStepW + 1;
  static constexpr int kAdvanceZ = kWindowsZ * C::kWindowStepD / kSpreadZ;
  static constexpr int kAdvanceY = kWindowsY * C::kWindowStepH / kSpreadY;
  static constexpr int kAdvanceX = kWindowsX * C::kWindowStepW / kSpreadX;

  // A block's tile, in channels and places, and how many there are.
  static constexpr int kBlockChannels = C::kChannels * C::kSplitC;
  // Channels whose weights lie side by side: a warpgroup's, if it fetches them for itself.
  static constexpr int kWeightRows = C::kWeightRing != 0 ? C::kChannels : kBlockChannels;
  static constexpr int kWeightRuns = kBlockChannels / kWeightRows;
  static constexpr int kBlockD = kAdvanceZ * (C::kSplitZ - 1) + C::kDeep;
  static constexpr int kBlockH = kAdvanceY * (C::kSplitY - 1) + C::kTall;
  static constexpr int kBlockW = kAdvanceX * (C::kSplitX - 1) + C::kWide;
  static constexpr int kTilesC = (kGroupOut + kBlockChannels - 1) / kBlockChannels;  // of a group
  static constexpr int kTilesZ =
      (C::kSeenD + kWindowsZ * C::kSplitZ - 1) / (kWindowsZ * C::kSplitZ);
  static constexpr int kTilesY =
      (C::kSeenH + kWindowsY * C::kSplitY - 1) / (kWindowsY * C::kSplitY);
  static constexpr int kTilesX =
      (C::kSeenW + kWindowsX * C::kSplitX - 1) / (kWindowsX * C::kSplitX);
  static constexpr int kChannelTiles = kDenseGroups * kTilesC;
  static constexpr int kPlaceTiles = kTilesZ * kTilesY * kTilesX;

  // The halo. With a stride, columns that are so far apart lie side by side: first all whose
  // coordinate is a multiple of the stride, then those behind them, and so on.
  static constexpr int kHaloD = (kBlockD - 1) * kStepZ + kReachZ + 1;
  static constexpr int kHaloH = (kBlockH - 1) * kStepY + kReachY + 1;
  static constexpr int kHaloW = (kBlockW - 1) * kStepX + kReachX + 1;
  static constexpr int kColumns = (kHaloW + kStepX - 1) / kStepX;
  static constexpr int kRowPitch = kColumns * kStepX;
  static constexpr int kPlane = kHaloD * kHaloH * kRowPitch;
  static constexpr int kHalo = kHaloD * kHaloH * kHaloW;
  static constexpr int kUnits = C::kChunks * kHalo;  // 16 bytes each

  KW_FN static constexpr int column(int x) { return x % kStepX * kColumns + x / kStepX; }
  KW_FN static constexpr int place(int z, int y, int x) {
    return (z * kHaloH + y) * kRowPitch + column(x);
  }

  // Phases, counted along x first.
  static constexpr int kPhases = kPhasesZ * kPhasesY * kPhasesX;
  KW_FN static constexpr int phase_x(int phase) { return phase % kPhasesX; }
  KW_FN static constexpr int phase_y(int phase) { return phase / kPhasesX % kPhasesY; }
  KW_FN static constexpr int phase_z(int phase) { return phase / (kPhasesX * kPhasesY); }

  KW_FN static constexpr int taps(int phase) {
    return z_axis().taps(phase_z(phase)) * y_axis().taps(phase_y(phase)) *
           x_axis().taps(phase_x(phase));
  }
  // Depth steps of a phase in one stage, and of all phases before it.
  KW_FN static constexpr int depth_steps(int phase) { return (taps(phase) * C::kChunks + 1) / 2; }
  KW_FN static constexpr int steps_before(int phase) {
    int count = 0;
    for (int p = 0; p < phase; ++p) count += depth_steps(p);
    return count;
  }
  static constexpr int kDepthSteps = [] {
    int count = 0;
    for (int p = 0; p < kPhases; ++p) count += depth_steps(p);
    return count;
  }();
  static constexpr int kMostDepthSteps = [] {
    int most = 0;
    for (int p = 0; p < kPhases; ++p) most = depth_steps(p) > most ? depth_steps(p) : most;
    return most;
  }();

  // The n-th column chunk of a row of the window, in ascending order of where it lies.
  KW_FN static constexpr int sorted_tap(int phase, int n) {
    const int count = x_axis().taps(phase);
    for (int i = 0; i < count; ++i) {
      const int own = column(x_axis().offset(phase, x_axis().tap(phase, i)));
      int before = 0;
      for (int k = 0; k < count; ++k) {
        before += column(x_axis().offset(phase, x_axis().tap(phase, k))) < own ? 1 : 0;
      }
      if (before == n) return x_axis().tap(phase, i);
    }
    return 0;
  }

  // Chunks ascend, so that the second of a pair is never before the first.
  KW_FN static constexpr ConvChunk chunk(int phase, int index) {
    const int all = taps(phase);
    const int count = all * C::kChunks;
    const bool exists = index < count;
    const int n = exists ? index : count - 1;
    const int px = phase_x(phase), py = phase_y(phase), pz = phase_z(phase);
    const int across = x_axis().taps(px), down = y_axis().taps(py);
    const int at = n % all;
    const int x = sorted_tap(px, at % across);
    const int y = y_axis().tap(py, at / across % down);
    const int z = z_axis().tap(pz, at / (across * down));
    const int offset =
        place(z_axis().offset(pz, z), y_axis().offset(py, y), x_axis().offset(px, x));
    return {n / all * kPlane + offset, n / all, {z, y, x}, exists};
  }

  // The low word of a descriptor for the places of a depth step, without the address: how far they
  // are from the stage's begin, and the second chunk from the first.
  KW_FN static constexpr uint32_t places_of(int phase, int step) {
    const int first = chunk(phase, 2 * step).offset;
    const int second = chunk(phase, 2 * step + 1).offset;
    return static_cast<uint32_t>(first) + (static_cast<uint32_t>(second - first) << 16);
  }

  // Those of the only phase, for code in which they are constants. Longer lists, and those of
  // several phases, are tables in shared memory.
  static constexpr bool kListed = kPhases > 1 || kDepthSteps > 48;
  struct List {
    uint32_t at[kListed ? 1 : kDepthSteps];
  };
  KW_FN static constexpr List places() {
    List list{};
    for (int s = 0; s < (kListed ? 0 : kDepthSteps); ++s) list.at[s] = places_of(0, s);
    return list;
  }
  // Whether a phase meets no tap at all.
  static constexpr bool kSomeEmpty = [] {
    for (int p = 0; p < kPhases; ++p) {
      if (depth_steps(p) == 0) return true;
    }
    return false;
  }();
};

// A tile of a block: its channels (of kChannelTiles), and its first place, which lies before the
// output where windows do.
struct ConvItem {
  int64_t sample;
  int channels;
  int z, y, x;

  template <class S>
  KW_FN static ConvItem at(int64_t index, S) {
    ConvItem item;
    const auto all = static_cast<uint32_t>(index);
    item.channels = static_cast<int>(all % S::kChannelTiles);
    const uint32_t rest = all / S::kChannelTiles;
    item.x = static_cast<int>(rest % S::kTilesX) * S::kAdvanceX * S::kSplitX - S::kWindowPadW;
    item.y = static_cast<int>(rest / S::kTilesX % S::kTilesY) * S::kAdvanceY * S::kSplitY -
             S::kWindowPadH;
    item.z = static_cast<int>(rest / (S::kTilesX * S::kTilesY) % S::kTilesZ) * S::kAdvanceZ *
                 S::kSplitZ -
             S::kWindowPadD;
    item.sample = rest / S::kPlaceTiles;
    return item;
  }
};

}  // namespace kw

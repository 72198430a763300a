// What a block of a convolution is at, and where things lie in its shared memory.
#pragma once

#include "conv_weights.cuh"
#include "hopper.cuh"

namespace kw {

// What the consumers are told of a stage: what undoes its scale, and, times a weight's scale, the
// magnitude below which a result is computed again.
struct alignas(8) ConvStage {
  float down;
  float doubt;
};

// Stages are full or empty, and so are each warpgroup's own weights (conv_ring.cuh); boxes of the
// input have come, and have been read.
template <class S>
struct ConvBarriers {
  static constexpr int kSlots = S::kWeightRing != 0 ? S::kWeightRing : 1;
  hopper::Barrier full[S::kStages];
  hopper::Barrier empty[S::kStages];
  hopper::Barrier ring_full[2][kSlots];
  hopper::Barrier ring_empty[2][kSlots];
  hopper::Barrier weights;
  hopper::Barrier come[S::kAhead];
  hopper::Barrier read[S::kAhead];
};

// Where things lie in the block's shared memory, in bytes.
template <class Loop, class S>
struct ConvMemory {
  static constexpr int kPlane = S::kChunks * S::kPlane * 16;
  static constexpr int kStage = Loop::kPlanes * kPlane;
  // A tile of several stages goes through them again for every phase.
  static constexpr bool kRevisits = S::kPhases > 1 && S::kSteps > 1;
  static constexpr int kVisits = kRevisits ? S::kPhases : 1;
  static constexpr int kWeightsPlane = 2 * S::kDepthSteps * S::kWeightRows * 16;
  static constexpr int kWeightsRun = Loop::kPlanes * kWeightsPlane;
  static constexpr int kWeightsStep = S::kWeightRuns * kWeightsRun;  // of one stage, all phases
  static constexpr int kRingPlane =
      2 * (kRevisits ? S::kMostDepthSteps : S::kDepthSteps) * S::kWeightRows * 16;
  static constexpr int kRing = Loop::kPlanes * kRingPlane;
  static constexpr int kRings =  // of what is not resident
      S::kWeightRing != 0 ? S::kWeightRuns * S::kWeightRing : S::kStages;

  // Input on its way: boxes of it, or what each thread copies for itself.
  static constexpr bool kBoxed = Loop::kScaled && S::kBoxed != 0;
  // A box begins at a multiple of 16 bytes, so many elements before what is wanted.
  static constexpr bool kOneLead =  // the same for all tiles
      S::kTilesX == 1 || S::kAdvanceX * S::kSplitX * S::kStepX % 4 == 0;
  static constexpr int kMostLead = kOneLead ? (S::kFirstX - S::kWindowPadW * S::kStepX) & 3 : 3;
  static constexpr int kBoxWide =
      (kMostLead + S::kHaloW + (S::kPack - 1) * S::kDilationW + 3) / 4 * 4;
  static constexpr int kBoxChannels =
      S::kLaneChannels < S::kGroupIn ? S::kLaneChannels : S::kGroupIn;
  static constexpr int kBoxChannel = S::kBoxDeep * S::kBoxTall * kBoxWide;  // elements
  static constexpr int kBoxBytes = kBoxChannels * kBoxChannel * 4;
  static constexpr int kBoxSlot = (kBoxBytes + 127) / 128 * 128;
  static constexpr int kBoxPlaces = S::kBoxDeep * S::kBoxTall * S::kHaloW;
  static constexpr int kBoxesDown = (S::kHaloH + S::kBoxTall - 1) / S::kBoxTall;
  static constexpr int kBoxesDeep = (S::kHaloD + S::kBoxDeep - 1) / S::kBoxDeep;
  static constexpr int kBoxes = kBoxesDeep * kBoxesDown;   // of a chunk
  static constexpr int kAtOnce = S::kUnits > 128 ? 2 : 1;  // units of a thread's round
  static constexpr int kRounds = (S::kUnits + kAtOnce * 128 - 1) / (kAtOnce * 128);
  static constexpr int kRaw = S::kAhead * (kBoxed          ? kBoxSlot
                                           : Loop::kScaled ? kAtOnce * 128 * 32
                                                           : 0);
  static constexpr int kPlacesTable = kBoxed ? 0 : S::kHalo * 8;

  // Where a chunk's box begins in the halo. The last one ends with it, and brings rows of the one
  // before it again, if need be.
  KW_FN static constexpr int box_depth(int box) {
    return last_at_end<S::kHaloD, S::kBoxDeep>(box / kBoxesDown);
  }
  KW_FN static constexpr int box_row(int box) {
    return last_at_end<S::kHaloH, S::kBoxTall>(box % kBoxesDown);
  }
  template <int kAlong, int kEach>
  KW_FN static constexpr int last_at_end(int n) {
    const int first = n * kEach;
    return kAlong % kEach != 0 && first > kAlong - kEach ? kAlong - kEach : first;
  }

  static constexpr int kUnits = 256 / S::kEpilogueThreads;  // that run an epilogue at once
  static constexpr int kTile = S::kTileChannels * S::kTilePitch * 4;

  static constexpr int kWeightsAt = S::kStages * kStage;
  static constexpr int kWeightsEnd =
      kWeightsAt + (S::kResident != 0 ? S::kSteps * kWeightsStep : kRings * kRing);
  static constexpr int kRawAt = (kWeightsEnd + 127) / 128 * 128;
  static constexpr int kTilesAt = kRawAt + kRaw;
  static constexpr int kFactorsAt = kTilesAt + kUnits * kTile;
  static constexpr int kTableAt = kFactorsAt + kUnits * S::kTileChannels * 4;
  static constexpr int kHaloAt = (kTableAt + (S::kDepthSteps + S::kPhases + 1) * 4 + 7) / 8 * 8;
  static constexpr int kScalesAt = kHaloAt + (kPlacesTable + 7) / 8 * 8;
  static constexpr int kAll =
      kScalesAt + (Loop::kScaled ? S::kChannelTiles * S::kBlockChannels * 8 : 0);
};

}  // namespace kw

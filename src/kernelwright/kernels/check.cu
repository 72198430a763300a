// Includes every CUDA template and instantiates it, so that a compiler reads all of them as they
// stand. Nothing runs here: tests/cpu/test_nvcc.py compiles this unit with warnings as errors. A
// new template is one line at the end.
#include "check_configs.cuh"

using namespace kw::check;

template cudaError_t kw::pointwise<ScaledSigmoid, kw::check::Grid>(const ScaledSigmoid::Args&,
                                                                   cudaStream_t);
template cudaError_t kw::ragged<ScaledSigmoid, kw::check::Grid>(const ScaledSigmoid::Args&,
                                                                cudaStream_t);
template cudaError_t kw::resident<Softmax, Warps>(const Softmax::Args&, cudaStream_t);
template cudaError_t kw::resident<GroupSpread, Teams>(const GroupSpread::Args&, cudaStream_t);
template cudaError_t kw::resident<Centred, Warps>(const Centred::Args&, cudaStream_t);
template cudaError_t kw::streaming<Softmax, Block>(const Softmax::Args&, cudaStream_t);
template cudaError_t kw::streaming<Centred, Block>(const Centred::Args&, cudaStream_t);
template cudaError_t kw::spread<Softmax, Everywhere>(const Softmax::Args&, float*, cudaStream_t);
template cudaError_t kw::spread<Centred, Everywhere>(const Centred::Args&, float*, cudaStream_t);
template cudaError_t kw::strided<ColumnStatistics, Columns>(const ColumnStatistics::Args&,
                                                            cudaStream_t);
template cudaError_t kw::turned<ChannelsFirst, Turning<4, 4>>(const ChannelsFirst::Args&,
                                                              cudaStream_t);
template cudaError_t kw::turned<PixelsOfThree, Turning<3, 1>>(const PixelsOfThree::Args&,
                                                              cudaStream_t);
template cudaError_t kw::spread_strided<ColumnStatistics, HighColumns>(
    const ColumnStatistics::Args&, float*, cudaStream_t);

template cudaError_t kw::resident<Grouped, Groups>(const Grouped::Args&, cudaStream_t);
template cudaError_t kw::resident<Apart, Warps>(const Apart::Args&, cudaStream_t);
template cudaError_t kw::pointwise<AtOnce, SingleLanes>(const AtOnce::Args&, cudaStream_t);
template cudaError_t kw::windows<PaddedSum, Boxes>(const PaddedSum::Args&, cudaStream_t);
template cudaError_t kw::pictures<NearlyAll, WholeImages>(const NearlyAll::Args&, cudaStream_t);

template cudaError_t kw::dropout::start<4>(const DropoutMask&, cudaStream_t);
template cudaError_t kw::few_rows<false>(const FewRows&, cudaStream_t);
template cudaError_t kw::few_rows<true>(const FewRows&, cudaStream_t);
template cudaError_t kw::thin_product<1, 0>(const ThinOperands&, cudaStream_t);
template cudaError_t kw::thin_product<2, 0>(const ThinOperands&, cudaStream_t);

template cudaError_t kw::gemm<kw::SplitFloat, GroupMinimum, Square>(const GemmOperands&,
                                                                    const GemmDecision&,
                                                                    const GroupMinimum::Args&,
                                                                    cudaStream_t);
template cudaError_t kw::gemm<kw::SplitFloat, Residual, Single, Across>(const GemmOperands&,
                                                                        const GemmDecision&,
                                                                        const Residual::Args&,
                                                                        cudaStream_t);
template cudaError_t kw::gemm<kw::SplitFloat, Residual, Square, Batched>(const GemmOperands&,
                                                                         const GemmDecision&,
                                                                         const Residual::Args&,
                                                                         cudaStream_t);
template cudaError_t kw::gemm<kw::RoundedFloat, GroupMinimum, Wide>(const GemmOperands&,
                                                                    const GemmDecision&,
                                                                    const GroupMinimum::Args&,
                                                                    cudaStream_t);
template cudaError_t kw::gemm<kw::Bfloat16, GroupMinimum, WidePairs>(const GemmOperands&,
                                                                     const GemmDecision&,
                                                                     const GroupMinimum::Args&,
                                                                     cudaStream_t);
template cudaError_t kw::gemm<kw::Bfloat16, GroupMinimum, WidePairs, Across>(
    const GemmOperands&, const GemmDecision&, const GroupMinimum::Args&, cudaStream_t);
template cudaError_t kw::gemm<kw::Float16, Residual, Single, Batched>(const GemmOperands&,
                                                                      const GemmDecision&,
                                                                      const Residual::Args&,
                                                                      cudaStream_t);
template cudaError_t kw::split_all<2, Major::kRow, true, 0>(const Operand&, const Batch&, void*,
                                                            void*, int64_t, int, cudaStream_t);
template cudaError_t kw::split_all<1, Major::kDepth, false, 0>(const Operand&, const Batch&, void*,
                                                               void*, int64_t, int, cudaStream_t);
template cudaError_t kw::conv<kw::ConvSplitFloat, ConvKept, ConvDense>(const ConvOperands&,
                                                                       const ConvKept::Args&,
                                                                       cudaStream_t);
template cudaError_t kw::conv<kw::ConvRoundedFloat, ConvKept, ConvBoxed>(const ConvOperands&,
                                                                         const ConvKept::Args&,
                                                                         cudaStream_t);
template cudaError_t kw::conv<kw::ConvRoundedFloat, ConvKept, ConvOwn>(const ConvOperands&,
                                                                       const ConvKept::Args&,
                                                                       cudaStream_t);
template cudaError_t kw::conv<kw::ConvRoundedFloat, ConvKept, ConvDense>(const ConvOperands&,
                                                                         const ConvKept::Args&,
                                                                         cudaStream_t);
template cudaError_t kw::conv<kw::ConvBfloat16, ConvKept, ConvHalves>(const ConvOperands&,
                                                                      const ConvKept::Args&,
                                                                      cudaStream_t);
template cudaError_t kw::conv<kw::ConvSplitFloat, ConvTurned, ConvWindows>(const ConvOperands&,
                                                                           const ConvKept::Args&,
                                                                           cudaStream_t);
template cudaError_t kw::conv<kw::ConvSplitFloat, ConvTurned, ConvOverlap>(const ConvOperands&,
                                                                           const ConvKept::Args&,
                                                                           cudaStream_t);
template cudaError_t kw::conv<kw::ConvSplitFloat, ConvKept, ConvPlaces>(const ConvOperands&,
                                                                        const ConvKept::Args&,
                                                                        cudaStream_t);
template cudaError_t kw::conv<kw::ConvSplitFloat, ConvKept, ConvStrided>(const ConvOperands&,
                                                                         const ConvKept::Args&,
                                                                         cudaStream_t);
template cudaError_t kw::conv<kw::ConvSplitFloat, ConvKept, ConvMeans>(const ConvOperands&,
                                                                       const ConvKept::Args&,
                                                                       cudaStream_t);
template cudaError_t kw::conv<kw::ConvRoundedFloat, ConvKept, ConvPhases>(const ConvOperands&,
                                                                          const ConvKept::Args&,
                                                                          cudaStream_t);
template cudaError_t kw::conv<kw::ConvFloat16, ConvKept, ConvPhases>(const ConvOperands&,
                                                                     const ConvKept::Args&,
                                                                     cudaStream_t);
template cudaError_t kw::conv<kw::ConvSplitFloat, ConvKept, ConvLargest>(const ConvOperands&,
                                                                         const ConvKept::Args&,
                                                                         cudaStream_t);
template cudaError_t kw::attend<float, BiasedScores, HeadsTogether<6, 49, 32>, Window>(
    const AttentionOperands&, const BiasedScores::Args&, const HeadsTogether<6, 49, 32>::Args&,
    cudaStream_t);
template cudaError_t kw::attend<kw::half_t, BiasedScores, HeadsTogether<6, 512, 64>, Sequence>(
    const AttentionOperands&, const BiasedScores::Args&, const HeadsTogether<6, 512, 64>::Args&,
    cudaStream_t);
template cudaError_t kw::attend<float, BiasedScores, HeadsTogether<6, 512, 64>, KeysAcross>(
    const AttentionOperands&, const BiasedScores::Args&, const HeadsTogether<6, 512, 64>::Args&,
    cudaStream_t);
template cudaError_t kw::conv<kw::ConvSplitFloat, ConvTotals<ConvDense>, ConvDense>(
    const ConvOperands&, const ConvTotals<ConvDense>::Args&, cudaStream_t);
template cudaError_t kw::conv<kw::ConvRoundedFloat, ConvTotals<ConvPlaces>, ConvPlaces>(
    const ConvOperands&, const ConvTotals<ConvPlaces>::Args&, cudaStream_t);
template cudaError_t kw::conv<kw::ConvSplitFloat, ConvMost<ConvPlaces>, ConvPlaces>(
    const ConvOperands&, const ConvMost<ConvPlaces>::Args&, cudaStream_t);

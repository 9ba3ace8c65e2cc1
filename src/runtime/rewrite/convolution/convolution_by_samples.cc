// Runs a convolution, or the gradient of its input, some samples at a time. Samples do not depend
// on each other. Where the result is in rows, oneDNN first computes a result of the same size in a
// layout of its own. For some samples this intermediate result is only a part of that size, and it
// stays in the cache.
//
// The bits are those of the whole only if the parts run the algorithm of the whole. ATen chooses
// the algorithm by the number of samples, among other things, and can be asked. oneDNN does so too,
// but cannot be asked. So a trial on random operands of the same shapes finds out which numbers of
// parts leave the bits alone. The order in which a kernel adds does not depend on the numbers, and
// another order shows in some of so many elements.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/mkldnn_convolution.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "runtime/rewrite/alternative.h"
#include "runtime/rewrite/convolution/convolution.h"
#include "runtime/rewrite/reuse/over_operand.h"
#include "runtime/step/replay_scope.h"
#include "runtime/step/tensors.h"

namespace reprise::runtime::internal::rewrite {

using step::kind_of;

namespace {

using Stack = std::vector<c10::IValue>;

// A part is held in both layouts, so two parts take as much memory as the whole.
constexpr int64_t kLeastParts = 3;
constexpr int64_t kLeastElements = 4096;  // in a smaller result, another order may not show

using enum Convolution::Operand;

// Returns the position of an operand. In the backward the gradient of the result comes first.
size_t index_of(Convolution::Operand operand, bool is_forward) {
  return operand + (is_forward ? 0U : 1U);
}

// Runs the work on samples [first, first + count) of its first `operands` operands.
at::Tensor run_samples(const Kernel& kernel, const Stack& stack, size_t operands, int64_t first,
                       int64_t count) {
  Stack part = stack;
  for (size_t a = 0; a < operands; ++a) part[a] = stack[a].toTensor().narrow(0, first, count);
  kernel(part);
  return part[0].toTensor();
}

Kernel in_parts(Kernel kernel, size_t operands, Geometry result, int64_t parts) {
  return [=](Stack& stack) {
    at::Tensor all = at::empty_strided(result.sizes, result.strides, stack[0].toTensor().options());
    for (int64_t k = 0; k < parts; ++k) {
      const auto [first, count] = samples_of(k, parts, result.sizes[0]);
      all.narrow(0, first, count).copy_(run_samples(kernel, stack, operands, first, count));
    }
    stack.assign(1, c10::IValue(std::move(all)));
  };
}

// Runs a convolution by oneDNN, however few the samples. (ATen does not use oneDNN for fewer than
// 16 samples where the window is a single pixel and there is one thread, nor for a single small
// sample.)
void by_onednn(Stack& stack) {
  auto bias = stack[kBias].toOptional<at::Tensor>();
  if (bias && bias->defined()) bias = bias->contiguous();
  at::Tensor result = at::mkldnn_convolution(
      stack[kInput].toTensor(), stack[kWeight].toTensor(), bias, stack[kPadding].toIntVector(),
      stack[kStride].toIntVector(), stack[kDilation].toIntVector(), stack[kGroups].toInt());
  stack.assign(1, c10::IValue(std::move(result)));
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.nbytes() == y.nbytes() &&
         std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

// Returns a tensor of random numbers with the geometry of the argument. It is undefined if elements
// of the argument share memory.
at::Tensor random_tensor(const Argument& argument, at::Generator& generator) {
  Geometry look = argument.tensors[0].geometry;
  look.offset %= 16;  // keeps an alignment that matters to vectorised kernels
  const auto size = static_cast<int64_t>(c10::elementSize(look.dtype));
  int64_t elements = 1;
  for (const int64_t length : look.sizes) elements *= length;
  const int64_t room = extent_bytes(look) / size;
  if (room - look.offset < elements) return {};
  at::Tensor memory = at::empty({room}, look.dtype);
  if (!argument.shape_only) memory.uniform_(-1, 1, generator);
  return tensor_on(memory.storage(), look);
}

// A Trial runs a convolution, or the gradient of its input, on random operands.
class Trial {
 public:
  Trial(const Work& work, bool is_forward) : is_forward_(is_forward) {
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(kSeed);
    for (const Argument& argument : work.arguments) {
      if (argument.kind == ArgumentKind::kConstant) {
        stack_.push_back(argument.constant);
      } else if (argument.tensors[0].memory == Memory::kNone) {
        stack_.emplace_back(at::Tensor());
      } else {
        stack_.emplace_back(random_tensor(argument, generator));
        is_possible_ = is_possible_ && stack_.back().toTensor().defined();
      }
    }
    if (!is_possible_) return;
    Stack stack = stack_;
    work.kernel(stack);
    expected_ = stack[0].toTensor();
  }

  bool is_possible() const { return is_possible_; }
  size_t operands() const { return is_forward_ ? 1 : 2; }  // their first dimension are samples

  // Returns the backend that ATen uses for so many samples.
  at::native::ConvBackend backend(int64_t samples) const {
    const auto list = [&](Convolution::Operand which) { return operand(which).toIntVector(); };
    const std::vector<int64_t> stride = list(kStride), padding = list(kPadding),
                               dilation = list(kDilation), output_padding = list(kOutputPadding);
    return at::native::select_conv_backend(
        operand(kInput).toTensor().narrow(0, 0, samples), operand(kWeight).toTensor(), {},
        c10::fromIntArrayRefSlow(stride), c10::fromIntArrayRefSlow(padding),
        c10::fromIntArrayRefSlow(dilation), operand(kTransposed).toBool(),
        c10::fromIntArrayRefSlow(output_padding), operand(kGroups).toInt(), {});
  }

  bool has_window_of_one() const {
    const at::IntArrayRef sizes = operand(kWeight).toTensor().sizes();
    return std::all_of(sizes.begin() + 2, sizes.end(), [](int64_t size) { return size == 1; });
  }

  bool agrees(const Kernel& kernel, int64_t parts) const {
    for (int64_t k = 0; k < parts; ++k) {
      const auto [first, count] = samples_of(k, parts, expected_.size(0));
      if (!same_bits(run_samples(kernel, stack_, operands(), first, count),
                     expected_.narrow(0, first, count))) {
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr uint64_t kSeed = 20200607;

  const c10::IValue& operand(Convolution::Operand which) const {
    return stack_[index_of(which, is_forward_)];
  }

  const bool is_forward_;
  bool is_possible_ = true;  // whether the elements of each operand lie apart
  Stack stack_;
  at::Tensor expected_;
};
// Finds a kernel that runs the work in parts: in the largest number of parts, of those tried, that
// leaves the bits alone. Returns null if there is none.
Kernel find_kernel(const Work& whole, bool is_forward, const Geometry& result, int64_t most) {
  const Trial trial(whole, is_forward);
  if (!trial.is_possible()) return nullptr;
  const int64_t samples = result.sizes[0];
  const auto backend = trial.backend(samples);
  const bool by_its_own =
      is_forward && backend == at::native::ConvBackend::Mkldnn && result.sizes.size() == 4;
  // This backend is then a product of matrices, which needs no memory beside its result.
  if (backend == at::native::ConvBackend::Slow2d && trial.has_window_of_one()) return nullptr;
  const Kernel kernel = by_its_own ? by_onednn : whole.kernel;
  for (int64_t parts = most; parts >= kLeastParts; parts /= 2) {
    const bool is_same = by_its_own || (trial.backend(samples / parts) == backend &&
                                        trial.backend((samples + parts - 1) / parts) == backend);
    if (is_same && trial.agrees(kernel, parts)) {
      return in_parts(kernel, trial.operands(), result, parts);
    }
  }
  return nullptr;
}

class BySamples {
 public:
  explicit BySamples(Rewriter& rewriter) : rewriter_(rewriter) {}

  // Adds a work that replaces `whole`, whose result is `ref`. Returns -1 if there is none, or if it
  // saves too little.
  int32_t work_for(const Work& whole, bool is_forward, const TensorRef& ref) {
    const Recording& recording = rewriter_.recording();
    const at::ScalarType type = ref.geometry.dtype;
    // Rounded to 16 bits, another order of additions may not show.
    if (!fills_storage(ref, recording) || (type != at::kFloat && type != at::kDouble)) return -1;
    const int64_t bytes = recording.values[ref.index].bytes;
    const auto elements = bytes / static_cast<int64_t>(c10::elementSize(type));
    const int64_t most = std::min(ref.geometry.sizes[0], blocks_in_cache(bytes));
    // Each part brings the weights into oneDNN's layout again.
    const TensorRef& weight = whole.arguments[index_of(kWeight, is_forward)].tensors[0];
    if (most < kLeastParts || elements < kLeastElements || bytes < extent_bytes(weight.geometry) ||
        !rewriter_.is_worthwhile(bytes - 2 * bytes / most)) {
      return -1;
    }
    const auto [found, fresh] = kernels_.try_emplace(kind_of(whole));
    if (fresh) found->second = find_kernel(whole, is_forward, ref.geometry, most);
    if (!found->second) return -1;
    Work work = whole;
    work.name += " by samples";
    work.kernel = found->second;
    return rewriter_.add_work(std::move(work));
  }

 private:
  Rewriter& rewriter_;
  std::map<std::string, Kernel> kernels_;  // by kind of work; null: there is none
};

VariantName variant_name(bool is_forward) {
  return {"convolution-by-samples", is_forward ? "input" : "grad_output"};
}

bool asks_for_input_only(const Call& call) {
  const Argument* mask = argument_of(call, "output_mask");
  if (mask == nullptr || !mask->constant.isBoolList()) return false;
  const auto wanted = mask->constant.toBoolList();
  return wanted.size() == 3 && wanted.get(0) && !wanted.get(1) && !wanted.get(2);
}

}  // namespace

void convolution_by_samples(Rewriter& rewriter) {
  const Recording& recording = rewriter.recording();
  if (!recording.device.is_cpu()) return;
  const ReplayScope scope;
  BySamples by_samples(rewriter);
  for (size_t i = 0; i < recording.calls.size(); ++i) {
    const Call& call = recording.calls[i];
    const bool is_forward = call.op.operator_name().name == "aten::convolution";
    const bool is_backward = call.op.operator_name().name == "aten::convolution_backward";
    if (!is_forward && !(is_backward && asks_for_input_only(call))) continue;
    const int32_t work =
        by_samples.work_for(rewriter.work(static_cast<int32_t>(i)), is_forward, call.outputs[0][0]);
    if (work < 0) continue;
    rewriter.add(CallVariant{static_cast<int32_t>(i), work, variant_name(is_forward)});
  }
  constexpr size_t kInputPiece = 1;
  for (size_t r = 0; r < rewriter.found().realizations.size(); ++r) {
    const CallRealization& realization = rewriter.found().realizations[r];
    if (realization.name != "two-call-convolution") continue;
    const CallRealization::Piece& piece = realization.pieces[kInputPiece];
    const Call& call = recording.calls[piece.after];
    const int32_t whole = piece.works[0];
    const int32_t work = by_samples.work_for(rewriter.work(whole), false, call.outputs[0][0]);
    if (work >= 0) rewriter.add_variant(r, kInputPiece, work, variant_name(false));
  }
}

}  // namespace reprise::runtime::internal::rewrite

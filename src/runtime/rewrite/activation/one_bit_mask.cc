// The backward of a function with a kink needs to know of each element only on which side of the
// kink it lies. The backward of dropout needs to know only whether a factor is zero. One bit can
// answer that. The bits are taken when the forward pass has no more use for the tensor, which is
// then freed.
//
// The backward is ATen's own kernel. It gets stand-ins for the answers, some elements at a time.
// ATen's kernel also gives the answers: an answer is what the kernel makes of a gradient of ones.
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/hardtanh_backward.h>
#include <ATen/ops/leaky_relu_backward.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/threshold_backward.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>

#include "runtime/rewrite/alternative.h"
#include "runtime/state/bits.h"

namespace reprise::runtime::internal::rewrite {

using state::bytes_of_bits;
using state::pack_bits;
using state::StandIns;
using state::unpack_bits;

namespace {

// So many elements are done at a time. They stay in the cache, and there are enough of them for all
// threads.
constexpr int64_t kBlock = 1 << 16;

using Backward =
    std::function<void(at::Tensor out, const at::Tensor& gradient, const at::Tensor& mask)>;

struct Question {
  const char* gradient = nullptr;  // names of arguments of the call
  const char* mask = nullptr;
  Backward backward = {};
  StandIns stand_ins = {};
  StandIns answers = {};   // the results for a gradient of ones, or the values of the mask
  bool is_factor = false;  // the mask has two values, which are the answers
  // For a NaN, ATen's kernel answers differently in its vectorised part and at the ends. Asked
  // about all elements at once, it answers now as it would later.
  bool at_once = false;
};

at::Tensor flat(const at::Tensor& tensor) {
  return at::as_strided(tensor, {tensor.numel()}, {1}, tensor.storage_offset());
}

// Calls visit(first, count) for all elements, `block` at a time.
template <class Visit>
void for_blocks(int64_t elements, int64_t block, Visit&& visit) {
  for (int64_t first = 0; first < elements; first += block) {
    visit(first, std::min(block, elements - first));
  }
}

at::Tensor bits_of(const Question& question, const at::Tensor& mask) {
  const at::Tensor elements = flat(mask);
  const int64_t count = elements.numel();
  const int64_t block = question.at_once ? count : std::min(count, kBlock);
  at::Tensor bits = at::empty({bytes_of_bits(count)}, mask.options().dtype(at::kByte));
  auto* to = bits.mutable_data_ptr<uint8_t>();
  if (question.is_factor) {
    pack_bits(elements, question.answers, to);
    return bits;
  }
  const at::Tensor ones = at::empty({block}, mask.options());
  for_blocks(count, block, [&](int64_t first, int64_t length) {
    const at::Tensor gradient = ones.narrow(0, 0, length).fill_(1);
    question.backward(gradient, gradient, elements.narrow(0, first, length));
    pack_bits(gradient, question.answers, to + first / 8);
  });
  return bits;
}

at::Tensor backward_of_bits(const Question& question, const at::Tensor& gradient,
                            const at::Tensor& bits, bool over) {
  at::Tensor result =
      over ? gradient : at::empty_strided(gradient.sizes(), gradient.strides(), gradient.options());
  const at::Tensor from = flat(gradient), to = flat(result);
  const int64_t count = from.numel();
  // For a NaN in a bfloat16 gradient, ATen's vectorised part leaves other bits than the ends.
  const bool is_reduced = c10::isReducedFloatingType(gradient.scalar_type());
  const int64_t block = is_reduced ? count : std::min(count, kBlock);
  const at::Tensor stand_ins = at::empty({block}, gradient.options());
  for_blocks(count, block, [&](int64_t first, int64_t length) {
    const at::Tensor mask = stand_ins.narrow(0, 0, length);
    unpack_bits(bits.const_data_ptr<uint8_t>() + first / 8, question.stand_ins, mask);
    question.backward(to.narrow(0, first, length), from.narrow(0, first, length), mask);
  });
  return result;
}

StandIns bytes_of(const at::Tensor& two) {
  StandIns bytes{};
  std::memcpy(bytes.data(), two.const_data_ptr(), two.nbytes());
  return bytes;
}

at::Tensor two_numbers(double first, double second, at::ScalarType type) {
  at::Tensor numbers = at::empty({2}, at::TensorOptions(type));
  numbers[0].fill_(first);
  numbers[1].fill_(second);
  return numbers;
}

// Returns the factor if the operand holds factors that dropout drew and that no call wrote since.
// Each element is then 0 or this factor.
std::optional<double> factor_of_dropout(const Recording& recording, const Argument& operand) {
  const auto maker_of = [&](const Argument& argument) -> const Call* {
    if (argument.kind != ArgumentKind::kTensor) return nullptr;
    const TensorRef& ref = argument.tensors[0];
    if (ref.memory != Memory::kValue) return nullptr;
    const int32_t maker = recording.values[ref.index].maker;
    return maker < 0 ? nullptr : &recording.calls[maker];
  };
  const Call* scaled = maker_of(operand);
  if (scaled == nullptr || scaled->name() != "div_.Scalar") return std::nullopt;
  const Argument &drawn = scaled->arguments[0], &by = scaled->arguments[1];
  const Call* draw = maker_of(drawn);
  if (draw == nullptr || draw->op.operator_name().name != "aten::bernoulli_") return std::nullopt;
  const Geometry& geometry = operand.tensors[0].geometry;
  if (drawn.tensors[0].geometry != geometry || draw->arguments[0].tensors[0].geometry != geometry) {
    return std::nullopt;
  }
  const double keep = by.constant.toScalar().toDouble();
  if (!(keep > 0) || !std::isfinite(keep)) return std::nullopt;
  const at::Tensor factor = at::ones({1}, at::TensorOptions(geometry.dtype));
  return factor.div_(by.constant.toScalar()).item<double>();
}

std::optional<Question> of_dropout(const Recording& recording, const Call& call) {
  const bool is_first = !factor_of_dropout(recording, call.arguments[1]);
  const Argument& mask = call.arguments[is_first ? 0 : 1];
  const std::optional<double> factor = factor_of_dropout(recording, mask);
  if (!factor) return std::nullopt;
  Question question{.gradient = is_first ? "other" : "self",
                    .mask = is_first ? "self" : "other",
                    .is_factor = true};
  question.backward = [](at::Tensor out, const at::Tensor& gradient, const at::Tensor& factors) {
    at::mul_out(out, gradient, factors);
  };
  question.stand_ins = bytes_of(two_numbers(0, *factor, mask.tensors[0].geometry.dtype));
  question.answers = question.stand_ins;
  return question;
}

// The question to a function with a kink. `no` and `yes` lie on the two sides of the kink.
std::optional<Question> of_kink(const Call& call, const Backward& backward, double no, double yes) {
  if (!std::isfinite(no) || !std::isfinite(yes)) return std::nullopt;
  const at::ScalarType type = call.outputs[0][0].geometry.dtype;
  const at::Tensor mask = two_numbers(no, yes, type), gradient = two_numbers(1, 1, type);
  backward(gradient, gradient, mask);
  const bool tells = gradient[0].item<double>() != 1 && gradient[1].item<double>() == 1;
  if (!tells) return std::nullopt;
  return Question{.gradient = "grad_output",
                  .mask = "self",
                  .backward = backward,
                  .stand_ins = bytes_of(mask),
                  .answers = bytes_of(gradient)};
}

std::optional<Question> question_of(const Recording& recording, const Call& call) {
  const std::string& name = call.op.operator_name().name;
  const auto number = [&](const char* argument) {
    return argument_of(call, argument)->constant.toScalar();
  };
  if (name == "aten::threshold_backward") {
    const c10::Scalar threshold = number("threshold");
    const double at = threshold.toDouble();
    return of_kink(
        call,
        [threshold](at::Tensor out, const at::Tensor& gradient, const at::Tensor& mask) {
          at::threshold_backward_out(out, gradient, mask, threshold);
        },
        at, at + std::max(1.0, std::abs(at)));
  }
  if (name == "aten::leaky_relu_backward") {
    const c10::Scalar slope = number("negative_slope");
    const bool of_result = argument_of(call, "self_is_result")->constant.toBool();
    return of_kink(
        call,
        [slope, of_result](at::Tensor out, const at::Tensor& gradient, const at::Tensor& mask) {
          at::leaky_relu_backward_out(out, gradient, mask, slope, of_result);
        },
        -1, 1);
  }
  if (name == "aten::hardtanh_backward") {
    const c10::Scalar low = number("min_val"), high = number("max_val");
    auto question = of_kink(
        call,
        [low, high](at::Tensor out, const at::Tensor& gradient, const at::Tensor& mask) {
          at::hardtanh_backward_out(out, gradient, mask, low, high);
        },
        high.toDouble(), (low.toDouble() + high.toDouble()) / 2);
    if (question) question->at_once = true;
    return question;
  }
  if (call.name() == "mul.Tensor") return of_dropout(recording, call);
  return std::nullopt;
}

Kernel asking(const Question& question) {
  return [question](std::vector<c10::IValue>& stack) {
    at::Tensor bits = bits_of(question, stack[0].toTensor());
    stack.clear();
    stack.emplace_back(std::move(bits));
  };
}

Kernel answering(const Question& question, bool over) {
  return [question, over](std::vector<c10::IValue>& stack) {
    at::Tensor result = backward_of_bits(question, stack[0].toTensor(), stack[1].toTensor(), over);
    stack.clear();
    stack.emplace_back(std::move(result));
  };
}

// Returns whether a codec keeps what the call reads for other calls, and the call reads it as it was.
bool is_encoded_for_others(const Rewriter& rewriter, int32_t c) {
  const auto has = [c](const std::vector<int32_t>& list) {
    return std::ranges::find(list, c) != list.end();
  };
  return std::ranges::any_of(rewriter.found().realizations, [&](const CallRealization& one) {
    return one.exactness == Exactness::kApproximate && has(one.calls) && !has(one.changed);
  });
}

// Returns the call of the forward behind which the bits are taken. It is -1 if something else in the
// backward needs the mask in any case.
int32_t place_to_ask(const Rewriter& rewriter, int32_t mask, int32_t c) {
  const int32_t behind = rewriter.last_forward_use(mask, c);
  if (behind >= 0 || !is_encoded_for_others(rewriter, c)) return behind;
  const Recording& recording = rewriter.recording();
  int32_t last = recording.values[mask].maker;
  for (const int32_t reader : rewriter.readers(mask)) {
    if (recording.calls[reader].phase == Phase::kForward) last = reader;
  }
  return last;
}

}  // namespace

void one_bit_mask(Rewriter& rewriter) {
  const Recording& recording = rewriter.recording();
  if (!recording.device.is_cpu()) return;
  for (size_t i = 0; i < recording.calls.size(); ++i) {
    const Call& call = recording.calls[i];
    const auto c = static_cast<int32_t>(i);
    if (call.phase != Phase::kBackward || call.outputs.size() != 1) continue;
    const auto question = question_of(recording, call);
    if (!question) continue;
    const TensorRef& result = call.outputs[0][0];
    const TensorRef& mask = argument_of(call, question->mask)->tensors[0];
    const TensorRef& gradient = argument_of(call, question->gradient)->tensors[0];
    if (result.geometry != mask.geometry || gradient.geometry != mask.geometry) continue;
    if (!covers_storage(mask, recording) || !covers_storage(result, recording) ||
        !covers_storage(gradient, recording) || mask.index == gradient.index) {
      continue;
    }
    const StepValue& made = recording.values[result.index];
    if (made.maker != c || made.previous >= 0 || rewriter.is_result(mask.index)) continue;
    const int32_t behind = place_to_ask(rewriter, mask.index, c);
    const int64_t before = recording.values[mask.index].bytes;
    const int64_t bytes =
        bytes_of_bits(before / static_cast<int64_t>(c10::elementSize(mask.geometry.dtype)));
    if (behind < 0 || !rewriter.is_worthwhile(before - bytes)) continue;

    const TensorRef bits{Memory::kValue,
                         rewriter.add_value(bytes),
                         {.sizes = {bytes}, .strides = {1}, .offset = 0, .dtype = at::kByte}};
    Work ask{.name = call.name() + " asks for bits",
             .kernel = asking(*question),
             .arguments = {{.kind = ArgumentKind::kTensor, .tensors = {mask}}},
             .made = {{0, 0, bits.index}}};
    Work fresh{.name = call.name() + " of bits",
               .kernel = answering(*question, false),
               .arguments = {{.kind = ArgumentKind::kTensor, .tensors = {gradient}},
                             {.kind = ArgumentKind::kTensor, .tensors = {bits}}},
               .made = {{0, 0, result.index}}};
    Work over = fresh;
    over.name += " in place";
    over.kernel = answering(*question, true);
    over.made.clear();
    over.overwrites = {{result.index, gradient.index}};
    CallRealization realization{.name = "one-bit-mask", .calls = {c}};
    realization.pieces.push_back({"ask", behind, {rewriter.add_work(std::move(ask))}, {"default"}});
    CallRealization::Piece piece{"of-bits", c, {rewriter.add_work(std::move(fresh))}, {"default"}};
    if (!rewriter.is_result(gradient.index) && rewriter.readers(gradient.index).back() == c) {
      piece.works.push_back(rewriter.add_work(std::move(over)));
      piece.names.emplace_back("one-bit-mask", "grad_output");
    }
    realization.pieces.push_back(std::move(piece));
    rewriter.add(std::move(realization));
  }
}

}  // namespace reprise::runtime::internal::rewrite

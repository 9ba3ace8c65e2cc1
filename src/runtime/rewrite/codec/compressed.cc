// An activation that only the backward still reads waits for it in few bits an element. It is encoded
// behind its last use in the forward, and decoded before its first reader in the backward. Chen et
// al., ActNN, arXiv 2104.14129; Liu et al., GACT, arXiv 2206.11357; Guo et al., OliVe, arXiv
// 2304.07493. What the forward computes keeps its bits, and gradients are approximate.
//
// Only backwards read a decoded value whose formulas are smooth in it: sums of products with it,
// norms, and activations without a kink. A mask, an index or the side of a kink would not be a little
// off but wrong. Where such a call reads the same value, the value stays for it, unless a later row
// keeps one bit in its place: the combination of both is added, too.
//
// A value and all its readers in the backward are one choice. Values that share a reader are in one
// choice, and are encoded together.
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/rewrite/alternative.h"
#include "runtime/rewrite/codec/codec_use.h"

namespace reprise::runtime::internal::rewrite {

using codec::CodecKind;
using codec::GroupCodec;

namespace {

// The least number of calls between the last forward use and the first reader in the backward.
constexpr int32_t kLeastDistance = 4;

// A Formula is a call of a backward, and the arguments that may be a little off.
struct Formula {
  std::string_view name;
  std::array<std::string_view, 4> arguments;
};

constexpr std::array kFormulas = {
    Formula{"aten::mm", {"self", "mat2"}},
    Formula{"aten::addmm", {"mat1", "mat2"}},
    Formula{"aten::bmm", {"self", "mat2"}},
    Formula{"aten::baddbmm", {"batch1", "batch2"}},
    Formula{"aten::mul", {"self", "other"}},
    Formula{"aten::convolution_backward", {"input"}},
    Formula{"aten::native_layer_norm_backward", {"input"}},
    Formula{"aten::native_batch_norm_backward", {"input"}},
    Formula{"aten::native_group_norm_backward", {"input"}},
    Formula{"aten::gelu_backward", {"self"}},
    Formula{"aten::silu_backward", {"self"}},
    Formula{"aten::mish_backward", {"self"}},
    Formula{"aten::softplus_backward", {"self"}},
    Formula{"aten::tanh_backward", {"output"}},
    Formula{"aten::sigmoid_backward", {"output"}},
    Formula{"aten::_softmax_backward_data", {"output"}},
    Formula{"aten::_log_softmax_backward_data", {"output"}},
    Formula{"aten::_scaled_dot_product_flash_attention_for_cpu_backward",
            {"query", "key", "value", "out"}},
};

// Calls that need one bit of an element, which `one-bit-mask` keeps.
constexpr std::array<std::string_view, 3> kKinks = {
    "aten::threshold_backward", "aten::hardtanh_backward", "aten::leaky_relu_backward"};

bool is_of_value(const TensorRef& ref, int32_t value) {
  return ref.memory == Memory::kValue && ref.index == value;
}

// Returns whether the call reads the value only where it may be a little off.
bool is_smooth_in(const Call& call, int32_t value) {
  const std::string& name = call.op.operator_name().name;
  const auto formula = std::ranges::find(kFormulas, name, &Formula::name);
  if (formula == kFormulas.end()) return false;
  const auto& formals = call.op.schema().arguments();
  for (size_t a = 0; a < call.arguments.size(); ++a) {
    if (call.arguments[a].shape_only) continue;
    const bool reads = std::ranges::any_of(
        call.arguments[a].tensors, [&](const TensorRef& ref) { return is_of_value(ref, value); });
    const bool may =
        a < formals.size() &&
        std::ranges::find(formula->arguments, formals[a].name()) != formula->arguments.end();
    if (reads && !may) return false;
  }
  return true;
}

// Encodes the elements of an operand into one block of bytes.
Kernel encoding(const std::shared_ptr<CodecUse>& use) {
  return [use](std::vector<c10::IValue>& stack) {
    const at::Tensor x = stack[0].toTensor();
    at::Tensor block = at::empty({use->kept_bytes}, x.options().dtype(at::kByte));
    use->stated = codec::encode(x.scalar_type(), x.const_data_ptr(), x.numel(), use->codec,
                                codec::place_in(block.mutable_data_ptr(), x.numel(), use->codec));
    use->error.reset();
    use->copy.clear();
    if (use->check != CodecCheck::kNone) {
      use->copy.resize(x.nbytes());
      std::memcpy(use->copy.data(), x.const_data_ptr(), x.nbytes());
    }
    stack.clear();
    stack.emplace_back(std::move(block));
  };
}

template <class Element>
double largest_error(const void* was, const void* is, int64_t elements) {
  const auto* const a = static_cast<const Element*>(was);
  const auto* const b = static_cast<const Element*>(is);
  double largest = 0;
  for (int64_t i = 0; i < elements; ++i) {
    const double error = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(error <= largest)) largest = error;
    if (std::isnan(error)) break;
  }
  return largest;
}

Kernel decoding(const std::shared_ptr<CodecUse>& use, at::ScalarType type, int64_t elements) {
  return [use, type, elements](std::vector<c10::IValue>& stack) {
    const at::Tensor block = stack[0].toTensor();
    at::Tensor x = at::empty({elements}, block.options().dtype(type));
    codec::decode(type,
                  codec::place_in(const_cast<void*>(block.const_data_ptr()), elements, use->codec),
                  elements, use->codec, x.mutable_data_ptr());
    const bool has_copy = use->copy.size() == x.nbytes();
    if (has_copy && use->check == CodecCheck::kCompare) {
      use->error = codec::with_element(type, [&]<class Element>(Element*) {
        return largest_error<Element>(use->copy.data(), x.const_data_ptr(), elements);
      });
    } else if (has_copy && use->check == CodecCheck::kBypass) {
      std::memcpy(x.mutable_data_ptr(), use->copy.data(), use->copy.size());
    }
    stack.clear();
    stack.emplace_back(std::move(x));
  };
}

// A Waiting is a value that may wait for its readers in few bits.
struct Waiting {
  int32_t value = -1;
  int32_t after = -1;  // its last use in the forward
  at::ScalarType type = at::kFloat;
  int64_t elements = 0;
  std::vector<int32_t> readers = {};  // in the backward
};

class Search {
 public:
  explicit Search(const Rewriter& rewriter)
      : rewriter_(rewriter),
        recording_(rewriter.recording()),
        overwritten_(recording_.values.size(), false) {
    for (const StepValue& value : recording_.values) {
      if (value.previous >= 0) overwritten_[value.previous] = true;
    }
  }

  // Returns the choices: lists of values that share no reader with those of other lists.
  std::vector<std::vector<Waiting>> choices() const {
    std::vector<Waiting> all;
    for (size_t v = 0; v < recording_.values.size(); ++v) {
      if (auto one = waiting(static_cast<int32_t>(v))) all.push_back(*std::move(one));
    }
    std::vector<size_t> group(all.size());
    std::iota(group.begin(), group.end(), size_t{0});
    std::map<int32_t, size_t> of_reader;
    for (size_t k = 0; k < all.size(); ++k) {
      for (const int32_t reader : all[k].readers) {
        const auto [known, is_new] = of_reader.emplace(reader, group[k]);
        if (is_new || known->second == group[k]) continue;
        const size_t from = group[k], to = known->second;
        for (size_t& one : group) one = one == from ? to : one;
        for (auto& entry : of_reader) {
          if (entry.second == from) entry.second = to;
        }
      }
    }
    std::map<size_t, std::vector<Waiting>> by_group;
    for (size_t k = 0; k < all.size(); ++k) by_group[group[k]].push_back(std::move(all[k]));
    std::vector<std::vector<Waiting>> result;
    for (auto& [first, list] : by_group) result.push_back(std::move(list));
    return result;
  }

 private:
  const Call& call(int32_t c) const { return recording_.calls[c]; }
  bool in_backward(int32_t c) const { return call(c).phase == Phase::kBackward; }

  std::optional<Waiting> waiting(int32_t v) const {
    const StepValue& value = recording_.values[v];
    if (value.maker < 0 || in_backward(value.maker) || !value.device.is_cpu()) return {};
    if (rewriter_.is_result(v) || overwritten_[v]) return {};
    Waiting found{.value = v, .after = value.maker};
    for (const int32_t reader : rewriter_.readers(v)) {
      if (in_backward(reader)) {
        found.readers.push_back(reader);
      } else {
        found.after = reader;
      }
    }
    if (found.readers.empty() || found.readers.front() - found.after < kLeastDistance) return {};
    return has_type(found) && may_wait(found) ? std::optional(found) : std::nullopt;
  }

  // Finds the type of the elements, which all tensors on the value must have.
  bool has_type(Waiting& found) const {
    const StepValue& value = recording_.values[found.value];
    const TensorRef* whole = nullptr;
    for (const auto& tensors : call(value.maker).outputs) {
      for (const TensorRef& ref : tensors) {
        if (is_of_value(ref, found.value) && covers_storage(ref, recording_)) whole = &ref;
      }
    }
    if (whole == nullptr) return false;
    found.type = whole->geometry.dtype;
    const bool is_known = found.type == at::kFloat || found.type == at::kDouble ||
                          found.type == at::kHalf || found.type == at::kBFloat16;
    if (!is_known) return false;
    found.elements = value.bytes / static_cast<int64_t>(c10::elementSize(found.type));
    for (const int32_t reader : found.readers) {
      for (const Argument& argument : call(reader).arguments) {
        for (const TensorRef& ref : argument.tensors) {
          if (!is_of_value(ref, found.value)) continue;
          const Geometry& geometry = ref.geometry;
          if (geometry.dtype != found.type || geometry.negative || geometry.conjugate) return false;
        }
      }
    }
    return true;
  }

  bool may_wait(const Waiting& found) const {
    const StepValue& value = recording_.values[found.value];
    if (!rewriter_.is_worthwhile(value.bytes - codec::block_bytes(found.elements, {})))
      return false;
    bool has_smooth = false;
    for (const int32_t reader : found.readers) {
      if (call(reader).random || !call(reader).effects.empty()) return false;
      const bool is_smooth = is_smooth_in(call(reader), found.value);
      has_smooth |= is_smooth;
      const std::string& name = call(reader).op.operator_name().name;
      if (!is_smooth && std::ranges::find(kKinks, name) == kKinks.end()) return false;
    }
    return has_smooth;
  }

  const Rewriter& rewriter_;
  const Recording& recording_;
  std::vector<bool> overwritten_;  // by value
};

// Makes the works of one choice.
class Builder {
 public:
  Builder(Rewriter& rewriter, const char* name, const GroupCodec& codec)
      : rewriter_(rewriter), recording_(rewriter.recording()), name_(name), codec_(codec) {}

  void add(const std::vector<Waiting>& values) {
    std::vector<int32_t> calls;
    for (const Waiting& one : values) {
      for (const int32_t reader : one.readers) step::add_once(calls, reader);
    }
    std::ranges::sort(calls);
    CallRealization realization{
        .name = name_, .calls = calls, .exactness = Exactness::kApproximate};
    std::map<int32_t, int32_t> decoded;  // by value
    for (const Waiting& one : values) decoded[one.value] = add_codec(one, realization);
    for (const int32_t c : calls) {
      std::map<int32_t, int32_t> names;  // what the call reads in place of what
      for (const Waiting& one : values) {
        if (is_smooth_in(call(c), one.value)) names[one.value] = decoded[one.value];
      }
      const bool reads_one = std::ranges::any_of(values, [&](const Waiting& one) {
        return names.contains(one.value) && std::ranges::find(one.readers, c) != one.readers.end();
      });
      if (reads_one) {
        add_reader(c, names, realization);
      } else {
        realization.pieces.push_back({.after = c, .as_it_is = true});
      }
    }
    rewriter_.add(std::move(realization));
  }

 private:
  const Call& call(int32_t c) const { return recording_.calls[c]; }

  // Adds the works that encode and decode the value, and returns the value that is decoded.
  int32_t add_codec(const Waiting& one, CallRealization& realization) {
    const StepValue value = recording_.values[one.value];
    auto use = std::make_shared<CodecUse>();
    use->alternative = name_;
    use->codec = codec_;
    use->plain_bytes = value.bytes;
    use->kept_bytes = codec::block_bytes(one.elements, codec_);
    const TensorRef whole{
        Memory::kValue,
        one.value,
        {.sizes = {one.elements}, .strides = {1}, .offset = 0, .dtype = one.type}};
    const TensorRef block{
        Memory::kValue,
        rewriter_.add_value(use->kept_bytes),
        {.sizes = {use->kept_bytes}, .strides = {1}, .offset = 0, .dtype = at::kByte}};
    const int32_t decoded = rewriter_.add_value(value.bytes);
    // Each value has names of its own, so that each is encoded on its own numbers when it is measured.
    const std::string what = fmt::format("{} {}", name_, one.value);
    use->encode = rewriter_.add_work({.name = what + " encodes",
                                      .kernel = encoding(use),
                                      .arguments = {tensor(whole)},
                                      .made = {{0, 0, block.index}}});
    use->decode = rewriter_.add_work({.name = what + " decodes",
                                      .kernel = decoding(use, one.type, one.elements),
                                      .arguments = {tensor(block)},
                                      .made = {{0, 0, decoded}}});
    const auto first = std::ranges::find_if(
        one.readers, [&](int32_t reader) { return is_smooth_in(call(reader), one.value); });
    realization.pieces.push_back({.name = "encode",
                                  .after = one.after,
                                  .works = {use->encode},
                                  .names = {"default"},
                                  .of = *first});
    realization.pieces.push_back({.name = "decode",
                                  .after = *first,
                                  .works = {use->decode},
                                  .names = {"default"},
                                  .of = *first});
    rewriter_.add(std::move(use));
    return decoded;
  }

  static Argument tensor(const TensorRef& ref) {
    return {.kind = ArgumentKind::kTensor, .tensors = {ref}};
  }

  // Adds the call with all its variants, as it reads decoded values.
  void add_reader(int32_t c, const std::map<int32_t, int32_t>& names,
                  CallRealization& realization) {
    CallRealization::Piece piece{.name = "of-decoded", .after = c, .of = c};
    const auto add_variant = [&](int32_t work, const VariantName& name) {
      piece.works.push_back(rewriter_.add_work(renamed(rewriter_.work(work), names)));
      piece.names.push_back(name);
    };
    add_variant(c, "default");
    const std::vector<CallVariant> variants = rewriter_.found().variants;
    for (const CallVariant& variant : variants) {
      if (variant.call == c) add_variant(variant.work, variant.name);
    }
    realization.changed.push_back(c);
    realization.pieces.push_back(std::move(piece));
  }

  static Work renamed(Work work, const std::map<int32_t, int32_t>& names) {
    for (Argument& argument : work.arguments) {
      for (TensorRef& ref : argument.tensors) {
        if (ref.memory != Memory::kValue) continue;
        const auto found = names.find(ref.index);
        if (found != names.end()) ref.index = found->second;
      }
    }
    for (auto& [now, before] : work.overwrites) {
      const auto found = names.find(before);
      if (found != names.end()) before = found->second;
    }
    return work;
  }

  Rewriter& rewriter_;
  const Recording& recording_;
  const char* const name_;
  const GroupCodec codec_;
};

void compress(Rewriter& rewriter, const char* name, const GroupCodec& codec) {
  if (!rewriter.recording().device.is_cpu()) return;
  const std::vector<std::vector<Waiting>> choices = Search(rewriter).choices();
  for (const std::vector<Waiting>& values : choices) Builder(rewriter, name, codec).add(values);
}

}  // namespace

void compressed_8(Rewriter& rewriter) { compress(rewriter, "compressed-8", {.bits = 8}); }

void compressed_4(Rewriter& rewriter) { compress(rewriter, "compressed-4", {.bits = 4}); }

void olive_8(Rewriter& rewriter) {
  compress(rewriter, "olive-8", {.bits = 8, .kind = CodecKind::kOlive});
}

void olive_4(Rewriter& rewriter) {
  compress(rewriter, "olive-4", {.bits = 4, .kind = CodecKind::kOlive});
}

}  // namespace reprise::runtime::internal::rewrite

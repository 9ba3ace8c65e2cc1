// These are the codecs of saved tensors, as tensors. On the host they use the loops of
// runtime/codec. On other devices, and in steps that are captured, they use operations of PyTorch.
//
// Tests: tests/runtime/group_codec_test.cc, olive_codec_test.cc.
#include "runtime/nn/group_codec.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "reprise/model/errors.h"
#include "runtime/codec/host_codec.h"
#include "runtime/codec/random_share.h"
#include "runtime/step/record.h"

namespace reprise::runtime {
namespace internal::nn {

using codec::groups_in;
using codec::random_share;

namespace {

using runtime::nn::CodecKind;
using runtime::nn::Encoded;
using runtime::nn::GroupCodec;

constexpr float kLeastStep = 1e-36f;
constexpr float kLargestFloat = std::numeric_limits<float>::max();

codec::Place place_of(const Encoded& encoded) {
  return {.codes = encoded.codes.mutable_data_ptr<uint8_t>(),
          .step = encoded.step.mutable_data_ptr<float>(),
          .least = encoded.least.defined() ? encoded.least.mutable_data_ptr<float>() : nullptr};
}

void encode_on_host(const at::Tensor& x, Encoded& encoded) {
  const GroupCodec& codec = encoded.codec;
  const int64_t elements = x.numel(), groups = groups_in(elements, codec.group);
  const at::TensorOptions numbers = x.options().dtype(at::kFloat);
  encoded.codes = at::empty({codec::bytes_of_codes(elements, codec)}, x.options().dtype(at::kByte));
  encoded.step = at::empty({groups}, numbers);
  if (codec.kind == CodecKind::kRange) encoded.least = at::empty({groups}, numbers);
  const codec::Stated stated =
      codec::encode(encoded.type, x.const_data_ptr(), elements, codec, place_of(encoded));
  if (codec.kind == CodecKind::kOlive) {
    encoded.error = at::full({1}, stated.bound, x.options().dtype(at::kDouble));
  }
}

bool on_host(const at::Tensor& x) { return x.is_cpu() && !step::is_recording(); }

at::Tensor counted_from_zero(int64_t count, const at::Tensor& like) {
  return at::arange(count, like.options().dtype(at::kInt));
}

}  // namespace

at::Tensor flat(const at::Tensor& x) { return x.as_strided({x.numel()}, {1}, x.storage_offset()); }

void encode_by_operations(const at::Tensor& x, Encoded& encoded) {
  if (encoded.codec.kind == CodecKind::kOlive) return encode_olive_by_operations(x, encoded);
  const GroupCodec& codec = encoded.codec;
  const int64_t elements = x.numel(), groups = groups_in(elements, codec.group);
  const int64_t per_byte = 8 / codec.bits, steps = (1 << codec.bits) - 1;
  const at::Tensor last = flat(x).slice(0, elements - 1).to(at::kFloat);
  const at::Tensor filled = last.expand({groups * codec.group - elements});  // changes no range
  const at::Tensor rows = at::cat({flat(x).to(at::kFloat), filled}).view({groups, codec.group});
  const at::Tensor finite = rows.isfinite().all(1);
  const at::Tensor low = rows.amin(1), high = rows.amax(1);
  const double wrong = std::numeric_limits<double>::quiet_NaN();
  encoded.least = at::where(finite, low, wrong);
  encoded.step = at::where(finite, high.div(steps).sub(low.div(steps)), wrong);
  const at::Tensor scale =
      at::where(encoded.step.gt(kLeastStep), encoded.step.reciprocal().mul(2), 0.0);
  at::Tensor share = at::full({1}, 0.5, rows.options());
  if (codec.stochastic) {
    share = at::empty({groups, codec.group}, at::TensorOptions(at::kFloat));
    float* const shares = share.mutable_data_ptr<float>();
    for (int64_t i = 0; i < share.numel(); ++i) shares[i] = random_share(codec.seed, i);
    share = share.to(rows.device());
  }
  const at::Tensor numbers = (rows / 2 - low.view({-1, 1}) / 2) * scale.view({-1, 1}) + share;
  const at::Tensor codes = at::where(finite.logical_and(scale.gt(0)).view({-1, 1}), numbers, 0.0)
                               .to(at::kInt)
                               .clamp_max(steps)
                               .view({-1, per_byte});
  const at::Tensor places = counted_from_zero(per_byte, codes).mul(codec.bits).view({1, -1});
  const at::Tensor bytes = at::bitwise_left_shift(codes, places).sum({1}).to(at::kByte);
  encoded.codes = bytes.slice(0, 0, (elements + per_byte - 1) / per_byte).clone();
}

at::Tensor decode_by_operations(const Encoded& encoded) {
  if (encoded.codec.kind == CodecKind::kOlive) return decode_olive_by_operations(encoded);
  const GroupCodec& codec = encoded.codec;
  const int64_t per_byte = 8 / codec.bits, groups = encoded.least.numel();
  const at::Tensor places =
      counted_from_zero(per_byte, encoded.codes).mul(codec.bits).view({1, -1});
  const at::Tensor codes =
      at::bitwise_and(at::bitwise_right_shift(encoded.codes.to(at::kInt).view({-1, 1}), places),
                      (1 << codec.bits) - 1)
          .view({-1});
  const at::Tensor rows = at::constant_pad_nd(codes, {0, groups * codec.group - codes.numel()})
                              .view({groups, codec.group});
  const at::Tensor numbers =
      ((encoded.least / 2).view({-1, 1}) + rows.to(at::kFloat) * (encoded.step / 2).view({-1, 1}))
          .mul(2)
          .clamp(-kLargestFloat, kLargestFloat);
  const at::Tensor x = at::empty_strided(encoded.sizes, encoded.strides,
                                         encoded.codes.options().dtype(encoded.type));
  flat(x).copy_(numbers.view({-1}).slice(0, 0, x.numel()));
  return x;
}

}  // namespace internal::nn

namespace nn {
namespace in = internal::nn;

int64_t Encoded::bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor* part : {&codes, &least, &step, &error}) {
    if (part->defined()) bytes += static_cast<int64_t>(part->nbytes());
  }
  return bytes;
}

double Encoded::largest_error() const {
  if (step.numel() == 0) return 0;
  if (codec.kind == CodecKind::kOlive) return error.item<double>();
  const at::Tensor width = step.to(at::kCPU), low = least.to(at::kCPU);
  double bound = 0;
  for (int64_t g = 0; g < width.numel(); ++g) {
    const double of_group = internal::codec::range_bound(
        low.const_data_ptr<float>()[g], width.const_data_ptr<float>()[g], type, codec);
    if (std::isnan(of_group)) return of_group;
    bound = std::max(bound, of_group);
  }
  return bound;
}

Encoded encode(const at::Tensor& x, const GroupCodec& codec) {
  const bool is_olive = codec.kind == CodecKind::kOlive;
  if (codec.bits != 8 && codec.bits != 4 && (codec.bits != 2 || is_olive)) {
    throw InputError(
        c10::str("a codec has 8, 4 or 2 bits, and OliVe's has 8 or 4, not ", codec.bits));
  }
  if (is_olive && codec.stochastic) {
    throw InputError("OliVe's codec rounds to the nearest number: leave stochastic out");
  }
  if (codec.group < internal::codec::kGroupUnit || codec.group % internal::codec::kGroupUnit != 0) {
    throw InputError(
        c10::str("a group of a codec is a multiple of 16 elements, not ", codec.group));
  }
  if (!x.defined() || x.layout() != at::kStrided || !x.is_floating_point() || x.is_neg()) {
    throw InputError("a codec takes a plain dense tensor of real numbers");
  }
  const at::NoGradGuard no_grad;
  const at::Tensor dense = x.is_non_overlapping_and_dense() ? x.detach() : x.detach().contiguous();
  Encoded encoded{.codec = codec,
                  .sizes = dense.sizes().vec(),
                  .strides = dense.strides().vec(),
                  .type = dense.scalar_type(),
                  .codes = {},
                  .least = {},
                  .step = {},
                  .error = {}};
  if (dense.numel() > 0 && !in::on_host(dense)) {
    in::encode_by_operations(dense, encoded);
  } else {
    in::encode_on_host(dense, encoded);
  }
  return encoded;
}

at::Tensor decode(const Encoded& encoded) {
  const at::NoGradGuard no_grad;
  if (!in::on_host(encoded.codes)) return in::decode_by_operations(encoded);
  const at::Tensor x = at::empty_strided(encoded.sizes, encoded.strides,
                                         encoded.codes.options().dtype(encoded.type));
  internal::codec::decode(encoded.type, in::place_of(encoded), x.numel(), encoded.codec,
                          x.mutable_data_ptr());
  return x;
}

}  // namespace nn
}  // namespace reprise::runtime

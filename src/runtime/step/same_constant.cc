#include "runtime/step/same_constant.h"

#include <algorithm>
#include <cstring>

namespace reprise::runtime::internal::step {
namespace {

bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

}  // namespace

bool is_comparable(const c10::IValue& value) {
  if (value.isList()) {
    const auto items = value.toListRef();
    return std::all_of(items.begin(), items.end(), is_comparable);
  }
  return value.isNone() || value.isBool() || value.isInt() || value.isDouble() ||
         value.isComplexDouble() || value.isString() || value.isDevice();
}

bool same_constant(const c10::IValue& a, const c10::IValue& b) {
  if (a.isNone() || b.isNone()) return a.isNone() == b.isNone();
  if (a.isBool() && b.isBool()) return a.toBool() == b.toBool();
  if (a.isInt() && b.isInt()) return a.toInt() == b.toInt();
  if (a.isDouble() && b.isDouble()) return same_bits(a.toDouble(), b.toDouble());
  if (a.isComplexDouble() && b.isComplexDouble()) {
    const auto x = a.toComplexDouble(), y = b.toComplexDouble();
    return same_bits(x.real(), y.real()) && same_bits(x.imag(), y.imag());
  }
  if (a.isString() && b.isString()) return a.toStringRef() == b.toStringRef();
  if (a.isDevice() && b.isDevice()) return a.toDevice() == b.toDevice();
  if (a.isList() && b.isList()) {
    const auto x = a.toListRef().vec(), y = b.toListRef().vec();
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), same_constant);
  }
  return a.tagKind() == b.tagKind();
}

}  // namespace reprise::runtime::internal::step

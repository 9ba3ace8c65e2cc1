#include "runtime/step/host_reads.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <utility>

namespace reprise::runtime::internal::step {
namespace {

constexpr const char* kNumber = "reprise::expect_number";
constexpr const char* kEqual = "reprise::expect_equal";
constexpr const char* kCount = "reprise::expect_count";
constexpr const char* kGiveNumber = "reprise::give_number";
constexpr const char* kGiveEqual = "reprise::give_equal";
constexpr const char* kHostCopy = "reprise::host_copy";

thread_local AtFirstRead* at_first_read = nullptr;
thread_local GivenNumbers* given_numbers = nullptr;
thread_local bool followed = false;

int64_t number_in(const at::Scalar& scalar) {
  return scalar.isBoolean() ? static_cast<int64_t>(scalar.toBool()) : scalar.to<int64_t>();
}

void compare(int64_t expected, int64_t found, int64_t read) {
  if (expected != found) throw ReadMiss(static_cast<size_t>(read), expected, found);
}

void expect_number(const at::Tensor& self, int64_t expected, int64_t read) {
  compare(expected, number_in(at::_local_scalar_dense(self)), read);
}

void expect_equal(const at::Tensor& self, const at::Tensor& other, int64_t expected, int64_t read) {
  compare(expected, static_cast<int64_t>(at::equal(self, other)), read);
}

void expect_count(const at::Tensor& self, int64_t expected, int64_t read) {
  compare(expected, count_of(self), read);
}

void give(int64_t read, c10::IValue number) {
  if (given_numbers != nullptr) given_numbers->put(read, std::move(number));
}

void give_number(const at::Tensor& self, int64_t read) {
  give(read, at::_local_scalar_dense(self));
}

void give_equal(const at::Tensor& self, const at::Tensor& other, int64_t read) {
  give(read, at::equal(self, other));
}

at::Tensor copy_for_host(const at::Tensor& self) {
  at::Tensor copy =
      at::empty_like(self, self.options().device(at::kCPU), at::MemoryFormat::Contiguous);
  return copy.copy_(self);
}

// Returns one of our operators. They are registered when the first of them is asked for, and stay.
c10::OperatorHandle our_operator(const char* name) {
  static const torch::Library* const library = [] {
    auto* ours =
        new torch::Library(torch::Library::FRAGMENT, "reprise", std::nullopt, __FILE__, __LINE__);
    const auto add = [&](const char* schema, const char* op, auto* kernel) {
      // Another copy of this library in the process may have registered them.
      if (c10::Dispatcher::singleton().findSchema({op, ""})) return;
      ours->def(schema);
      ours->impl(op, torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, kernel));
    };
    add("expect_number(Tensor self, int expected, int read) -> ()", kNumber, &expect_number);
    add("expect_equal(Tensor self, Tensor other, int expected, int read) -> ()", kEqual,
        &expect_equal);
    add("expect_count(Tensor self, int expected, int read) -> ()", kCount, &expect_count);
    add("give_number(Tensor self, int read) -> ()", kGiveNumber, &give_number);
    add("give_equal(Tensor self, Tensor other, int read) -> ()", kGiveEqual, &give_equal);
    add("host_copy(Tensor self) -> Tensor", kHostCopy, &copy_for_host);
    return ours;
  }();
  static_cast<void>(library);
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

// Returns a guard that stands where the call stands.
Call guard_at(const Call& call, const char* name, std::vector<Argument> arguments, size_t read) {
  Call guard(our_operator(name));
  guard.arguments = std::move(arguments);
  guard.arguments.push_back({.constant = static_cast<int64_t>(read)});
  guard.phase = call.phase;
  guard.grad_mode = call.grad_mode;
  guard.node = call.node;
  guard.place = call.place;
  return guard;
}

bool is_mask(const TensorRef& index) {
  return index.memory != Memory::kNone &&
         (index.geometry.dtype == at::kBool || index.geometry.dtype == at::kByte);
}

std::string place_of(const HostRead& read) { return read.place.empty() ? "" : " at " + read.place; }

}  // namespace

bool reads_on_host(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return name == "aten::_local_scalar_dense" || name == "aten::equal";
}

bool sizes_by_count(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  return (name.name == "aten::nonzero" || name.name == "aten::masked_select" ||
          name.name == "aten::index") &&
         name.overload_name != "out";
}

std::vector<Mask> masks_of(const Call& call) {
  const std::string& name = call.op.operator_name().name;
  if (!sizes_by_count(call.op)) return {};
  if (name == "aten::nonzero") return {{0, 0}};
  if (name == "aten::masked_select") return {{1, 0}};
  std::vector<Mask> masks;
  const std::vector<TensorRef>& indices = call.arguments.at(1).tensors;
  for (size_t i = 0; i < indices.size(); ++i) {
    if (is_mask(indices[i])) masks.push_back({1, i});
  }
  return masks;
}

int64_t count_of(const at::Tensor& mask) {
  const at::NoGradGuard no_grad;
  return number_in(at::_local_scalar_dense(at::count_nonzero(mask)));
}

Call guard_of_read(const Call& call, const c10::IValue& result, size_t read) {
  if (call.op.operator_name().name == "aten::equal") {
    return guard_at(call, kEqual,
                    {call.arguments.at(0),
                     call.arguments.at(1),
                     {.constant = static_cast<int64_t>(result.toBool())}},
                    read);
  }
  return guard_at(call, kNumber, {call.arguments.at(0), {.constant = number_in(result.toScalar())}},
                  read);
}

Call guard_that_gives(const Call& call, size_t read) {
  if (call.op.operator_name().name == "aten::equal") {
    return guard_at(call, kGiveEqual, {call.arguments.at(0), call.arguments.at(1)}, read);
  }
  return guard_at(call, kGiveNumber, {call.arguments.at(0)}, read);
}

Call guard_of_count(const Call& call, const Mask& mask, int64_t count, size_t read) {
  const Argument argument{.kind = ArgumentKind::kTensor,
                          .tensors = {call.arguments.at(mask.argument).tensors.at(mask.item)}};
  return guard_at(call, kCount, {argument, {.constant = count}}, read);
}

bool expects_number(const Call& call) {
  return call.op.operator_name().name.starts_with("reprise::expect_");
}

bool is_guard(const Call& call) {
  return expects_number(call) || call.op.operator_name().name.starts_with("reprise::give_");
}

bool copies_for_host(const c10::OperatorHandle& op) { return op.operator_name().name == kHostCopy; }

bool is_host_read(const Call& call) { return is_guard(call) || copies_for_host(call.op); }

at::Tensor host_copy(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return our_operator(kHostCopy).typed<at::Tensor(const at::Tensor&)>().call(tensor.detach());
}

AsFollowed::AsFollowed(bool now) : before_(std::exchange(followed, now)) {}
AsFollowed::~AsFollowed() { followed = before_; }
bool is_followed() { return followed; }

GivenNumbers::GivenNumbers() : outer_(std::exchange(given_numbers, this)) {}
GivenNumbers::~GivenNumbers() { given_numbers = outer_; }
const c10::IValue& GivenNumbers::of(const Call& guard) const {
  return numbers_.at(guard.arguments.back().constant.toInt());
}

HostRead host_read(const Call& guard) {
  const std::string& name = guard.op.operator_name().name;
  const at::ScalarType type = guard.arguments.at(0).tensors.at(0).geometry.dtype;
  return {.expected = guard.arguments.at(guard.arguments.size() - 2).constant.toInt(),
          .is_bool = name == kEqual || (name == kNumber && type == at::kBool),
          .what = name == kEqual   ? "the answer of torch.equal()"
                  : name == kCount ? "the number of elements that a mask selects"
                                   : "a number that the step reads out of a tensor",
          .place = guard.place};
}

std::vector<HostRead> host_reads(const Recording& recording) {
  std::vector<HostRead> all;
  for (const Call& call : recording.calls) {
    if (expects_number(call)) all.push_back(host_read(call));
  }
  return all;
}

std::string text_of(const HostRead& read, int64_t number) {
  if (read.is_bool) return number != 0 ? "True" : "False";
  return std::to_string(number);
}

std::string describe(const HostRead& read) {
  return fmt::format("{}, {}{}", text_of(read, read.expected), read.what, place_of(read));
}

std::string difference_of(const HostRead& read, int64_t found) {
  return fmt::format("{}{} was {} and is {}", read.what, place_of(read),
                     text_of(read, read.expected), text_of(read, found));
}

ReadMiss::ReadMiss(size_t read, int64_t expected, int64_t found)
    : InputError(fmt::format("host read {} of the step gives {} instead of {}, although the same "
                             "operations ran on the same data",
                             read, found, expected)),
      read_(read),
      found_(found) {}

AtFirstRead::AtFirstRead(std::function<void()> visit)
    : outer_(std::exchange(at_first_read, this)), visit_(std::move(visit)) {}

AtFirstRead::~AtFirstRead() { at_first_read = outer_; }

void note_host_read() {
  if (at_first_read == nullptr || !at_first_read->visit_) return;
  std::exchange(at_first_read->visit_, nullptr)();
}

}  // namespace reprise::runtime::internal::step

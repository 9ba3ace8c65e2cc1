#include "generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <vector>

#include "accelerator.h"
#include "streams.h"

namespace sim {
namespace {

void copy_state(const at::Generator& from, const at::Generator& to) {
  const auto state = from.unsafeGetGeneratorImpl()->get_state();
  to.unsafeGetGeneratorImpl()->set_state(*state);
}

std::mutex& draw_mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

}  // namespace

DeviceGenerator::DeviceGenerator(c10::DeviceIndex index)
    : c10::GeneratorImpl(sim::device(index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      on_host_(at::detail::createCPUGenerator()) {}

void DeviceGenerator::set_current_seed(uint64_t seed) { on_host_.set_current_seed(seed); }
uint64_t DeviceGenerator::current_seed() const { return on_host_.current_seed(); }
uint64_t DeviceGenerator::seed() { return on_host_.seed(); }
void DeviceGenerator::set_offset(uint64_t offset) { on_host_.set_offset(offset); }
uint64_t DeviceGenerator::get_offset() const {
  return on_host_.unsafeGetGeneratorImpl()->get_offset();
}
void DeviceGenerator::set_state(const c10::TensorImpl& state) {
  on_host_.unsafeGetGeneratorImpl()->set_state(state);
}
c10::intrusive_ptr<c10::TensorImpl> DeviceGenerator::get_state() const {
  return on_host_.unsafeGetGeneratorImpl()->get_state();
}
DeviceGenerator* DeviceGenerator::clone_impl() const {
  auto* const copy = new DeviceGenerator(device().index());
  copy->on_host_ = on_host_.clone();
  return copy;
}

at::Generator new_generator(int device) {
  return at::make_generator<DeviceGenerator>(
      static_cast<c10::DeviceIndex>(device < 0 ? current_device() : device));
}

const at::Generator& default_generator(int device) {
  static const auto* const all = [] {
    auto* const made = new std::vector<at::Generator>;
    for (int d = 0; d < device_count(); ++d) made->push_back(new_generator(d));
    return made;
  }();
  return all->at(static_cast<size_t>(device < 0 ? current_device() : device));
}

at::Generator host_generator_of(const at::Generator& device_generator) {
  return at::check_generator<DeviceGenerator>(device_generator)->on_host();
}

DrawScope::DrawScope(int device)
    : turn_(draw_mutex()),
      of_device_(host_generator_of(default_generator(device))),
      of_host_(at::detail::getDefaultCPUGenerator().clone()) {
  copy_state(of_device_, at::detail::getDefaultCPUGenerator());
}

DrawScope::~DrawScope() {
  copy_state(at::detail::getDefaultCPUGenerator(), of_device_);
  copy_state(of_host_, at::detail::getDefaultCPUGenerator());
}

}  // namespace sim

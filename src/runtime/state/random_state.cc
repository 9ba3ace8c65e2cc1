#include "runtime/state/random_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Generator.h>

#include <cstring>
#include <mutex>

namespace reprise::runtime::internal::state {
namespace {

at::CPUGeneratorImpl& cpu_generator() {
  return *at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
}

bool same_state(at::CPUGeneratorImpl& a, at::CPUGeneratorImpl& b) {
  const at::mt19937_data_pod x = a.engine().data(), y = b.engine().data();
  return std::memcmp(&x.state_, &y.state_, sizeof x.state_) == 0 && x.left_ == y.left_ &&
         x.next_ == y.next_ && x.seed_ == y.seed_ &&
         a.next_float_normal_sample() == b.next_float_normal_sample() &&
         a.next_double_normal_sample() == b.next_double_normal_sample();
}

const at::Generator& device_generator(c10::Device device) {
  return at::globalContext().defaultGenerator(device);
}

}  // namespace

RandomState::RandomState(c10::Device device) : device_(device) {
  {
    std::lock_guard<std::mutex> lock(cpu_generator().mutex_);
    cpu_ = cpu_generator().clone();
  }
  if (!device.is_cpu()) {
    at::Generator generator = device_generator(device);
    std::lock_guard<std::mutex> lock(generator.mutex());
    other_ = generator.get_state();
  }
}

void RandomState::restore() const {
  {
    at::CPUGeneratorImpl& generator = cpu_generator();
    auto saved = std::const_pointer_cast<at::CPUGeneratorImpl>(cpu_);  // the getters are not const
    std::lock_guard<std::mutex> lock(generator.mutex_);
    generator.set_engine(saved->engine());
    generator.set_next_float_normal_sample(saved->next_float_normal_sample());
    generator.set_next_double_normal_sample(saved->next_double_normal_sample());
  }
  if (other_.defined()) {
    at::Generator generator = device_generator(device_);
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(other_);
  }
}

bool RandomState::operator==(const RandomState& other) const {
  if (other_.defined() != other.other_.defined()) return false;
  return same_state(*std::const_pointer_cast<at::CPUGeneratorImpl>(cpu_),
                    *std::const_pointer_cast<at::CPUGeneratorImpl>(other.cpu_)) &&
         (!other_.defined() || other_.equal(other.other_));
}

bool RandomState::is_now() const {
  if (!device_.is_cpu()) return *this == RandomState(device_);
  std::lock_guard<std::mutex> lock(cpu_generator().mutex_);
  return same_state(*std::const_pointer_cast<at::CPUGeneratorImpl>(cpu_), cpu_generator());
}

}  // namespace reprise::runtime::internal::state

#include "streams.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

namespace sim {
namespace {

std::unique_ptr<Streams>& instance() {
  static auto* made = new std::unique_ptr<Streams>;  // lives until the process ends
  return *made;
}
int devices_made = 0;
std::array<std::atomic<unsigned>, 64> next_of_pool{};

struct Chosen {
  int device = 0;
  std::array<int, 64> stream{};  // of each device, counted from its default one
};
thread_local Chosen chosen;

int64_t duration_ns(size_t bytes, double bytes_per_second) {
  return static_cast<int64_t>(static_cast<double>(bytes) / bytes_per_second * 1e9);
}

}  // namespace

int stream_number(c10::Stream stream) {
  TORCH_CHECK(stream.id() >= 0 && stream.id() < kStreamsPerDevice && stream.device_index() >= 0 &&
                  stream.device_index() < devices_made,
              "sim: no such stream: ", stream);
  return stream.device_index() * kStreamsPerDevice + static_cast<int>(stream.id());
}
c10::Stream stream_of(int number) {
  return c10::Stream(c10::Stream::UNSAFE, device(device_of_stream(number)),
                     number % kStreamsPerDevice);
}
std::string stream_name(int number) {
  return "stream " + std::to_string(number % kStreamsPerDevice) +
         " of sim:" + std::to_string(device_of_stream(number));
}

Streams::Streams(const Options& options, std::function<void()> after_host_waits)
    : speed_(options.speed),
      after_host_waits_(std::move(after_host_waits)),
      check_(options.devices * kStreamsPerDevice, options.check_order),
      streams_(static_cast<size_t>(options.devices) * kStreamsPerDevice),
      devices_(static_cast<size_t>(options.devices)) {}

void Streams::land_up_to(int number, uint64_t ticket) {
  Stream& stream = at(number);
  while (stream.done < ticket && !stream.tasks.empty()) {
    const std::function<void()> task = std::move(stream.tasks.front());
    stream.tasks.pop_front();
    task();
    ++stream.done;
  }
}

void Streams::before_kernel(int stream) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  land_up_to(stream, at(stream).queued);
}

void Streams::kernel_ran(int stream, size_t bytes) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  Device& device = devices_[static_cast<size_t>(device_of_stream(stream))];
  const int64_t time = speed_.kernel_ns + duration_ns(bytes, speed_.kernel_bytes_per_second);
  const int64_t begin = std::max({host_ns_, at(stream).ready_ns, device.kernels_ready_ns});
  at(stream).ready_ns = device.kernels_ready_ns = begin + time;
  device.busy.kernels_ns += time;
  host_ns_ += speed_.launch_ns;
}

uint64_t Streams::queue_copy(int stream, int on_device, Channel channel, size_t bytes,
                             std::function<void()> copy) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  Device& device = devices_[static_cast<size_t>(on_device)];
  int64_t& channel_ready = device.channel_ready_ns[channel == Channel::kToDevice ? 0 : 1];
  const int64_t time = speed_.copy_ns + duration_ns(bytes, speed_.copy_bytes_per_second);
  const int64_t begin = std::max({host_ns_, at(stream).ready_ns, channel_ready});
  at(stream).ready_ns = channel_ready = begin + time;
  (channel == Channel::kToDevice ? device.busy.to_device_ns : device.busy.to_host_ns) += time;
  host_ns_ += speed_.launch_ns;
  ++copies_;
  at(stream).tasks.push_back(std::move(copy));
  return ++at(stream).queued;
}

void Streams::record(Event& event, int stream) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  event = {.stream = stream,
           .ticket = at(stream).queued,
           .time_ns = std::max(at(stream).ready_ns, host_ns_),
           .clock = check_.recorded(stream)};
}

void Streams::stream_waits(int stream, const Event& event) {
  if (event.stream < 0) return;
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  at(stream).ready_ns = std::max(at(stream).ready_ns, event.time_ns);
  check_.stream_waits(stream, event.clock);
  if (event.stream == stream || at(event.stream).done >= event.ticket) return;
  at(stream).tasks.push_back(
      [this, from = event.stream, ticket = event.ticket] { land_up_to(from, ticket); });
  ++at(stream).queued;
}

void Streams::host_waits(const Event& event) {
  if (event.stream < 0) return;
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  land_up_to(event.stream, event.ticket);
  host_ns_ = std::max(host_ns_, event.time_ns);
  check_.host_waits(event.clock);
  after_host_waits_();
}

void Streams::host_waits(int stream) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  Event now;
  record(now, stream);
  host_waits(now);
}

void Streams::host_waits_for_device(int device) {
  for (int s = 0; s < kStreamsPerDevice; ++s) host_waits(device * kStreamsPerDevice + s);
}

bool Streams::is_over(const Event& event) {
  if (event.stream < 0) return true;
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  host_ns_ += speed_.launch_ns;
  if (event.time_ns > host_ns_) return false;
  host_waits(event);
  return true;
}

bool Streams::is_over(int stream) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  host_ns_ += speed_.launch_ns;
  if (at(stream).ready_ns > host_ns_) return false;
  host_waits(stream);
  return true;
}

void Streams::land(int stream, uint64_t ticket) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  land_up_to(stream, ticket);
}
uint64_t Streams::last_ticket(int stream) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  return at(stream).queued;
}
bool Streams::has_landed(int stream, uint64_t ticket) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  return at(stream).done >= ticket;
}
int64_t Streams::host_time_ns() {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  return host_ns_;
}
BusyTimes Streams::busy_times(int device) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  return devices_.at(static_cast<size_t>(device)).busy;
}
uint64_t Streams::queued_copies() {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  return copies_;
}

void make_streams(const Options& options, std::function<void()> after_host_waits) {
  devices_made = options.devices;
  instance() = std::make_unique<Streams>(options, std::move(after_host_waits));
}
Streams& streams() {
  TORCH_CHECK(instance() != nullptr, "sim: no devices; call sim::install() first");
  return *instance();
}

int device_count() { return devices_made; }
int current_device() { return chosen.device; }
int exchange_device(int to) {
  TORCH_CHECK(to >= 0 && to < devices_made, "sim: no device sim:", to, "; there are ",
              devices_made);
  return std::exchange(chosen.device, to);
}
int current_stream(int device) {
  return device * kStreamsPerDevice + chosen.stream.at(static_cast<size_t>(device));
}
int exchange_stream(int number) {
  const int device = device_of_stream(number), before = current_stream(device);
  chosen.stream.at(static_cast<size_t>(device)) = number % kStreamsPerDevice;
  return before;
}
int next_stream(int device) {
  const unsigned turn = next_of_pool.at(static_cast<size_t>(device))++;
  return device * kStreamsPerDevice + 1 + static_cast<int>(turn % (kStreamsPerDevice - 1));
}

}  // namespace sim

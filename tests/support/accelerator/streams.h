// These are streams, events and the simulated clock of the devices.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "accelerator.h"
#include "order_check.h"

namespace sim {

inline constexpr int kStreamsPerDevice = 8;  // the first one is the default stream

// Streams have one number over all devices.
int stream_number(c10::Stream stream);
c10::Stream stream_of(int number);
inline int device_of_stream(int number) { return number / kStreamsPerDevice; }
std::string stream_name(int number);  // "stream 3 of sim:0"

// An Event is a place in its stream. Recording it again moves it.
struct Event {
  int stream = -1;      // -1: never recorded
  uint64_t ticket = 0;  // the copies of the stream up to this number stand before it
  int64_t time_ns = 0;  // when the stream gets there
  Clock clock;
};

// A Channel says where a copy runs: each direction of each device is a queue of its own.
enum class Channel { kToDevice, kToHost };

// Streams has the streams of all devices. There are no threads. Kernels run when they are called,
// behind whatever their stream has queued. Copies are queued, and the bytes land only when somebody
// waits for them: the host, a kernel behind them, or a stream that waits for an event behind them.
// So a program that forgets to wait sees the old bytes, in every run.
//
// Time is simulated. A call adds its duration to its stream and channel, and waiting moves the
// clock of the host. This clock answers the question whether something is over. The question costs
// time, so a loop that asks comes to an end.
class Streams {
 public:
  // The function is called after each wait of the host.
  Streams(const Options& options, std::function<void()> after_host_waits);

  OrderCheck& check() { return check_; }

  // A kernel that runs now: lands what is queued before it, and adds its time.
  void before_kernel(int stream);
  void kernel_ran(int stream, size_t bytes);

  // Queues a copy behind what the stream has. The memory must stay until wait_for() its ticket.
  uint64_t queue_copy(int stream, int device, Channel channel, size_t bytes,
                      std::function<void()> copy);

  void record(Event& event, int stream);
  void stream_waits(int stream, const Event& event);
  void host_waits(const Event& event);
  void host_waits(int stream);
  void host_waits_for_device(int device);
  bool is_over(const Event& event);
  bool is_over(int stream);

  // Lands the copies of the stream up to the ticket, without a wait that the host would know of.
  void land(int stream, uint64_t ticket);
  uint64_t last_ticket(int stream);
  bool has_landed(int stream, uint64_t ticket);

  int64_t host_time_ns();
  BusyTimes busy_times(int device);
  uint64_t queued_copies();

 private:
  struct Stream {
    std::deque<std::function<void()>> tasks;  // copies, and waits for other streams
    uint64_t queued = 0, done = 0;
    int64_t ready_ns = 0;
  };
  struct Device {
    int64_t kernels_ready_ns = 0, channel_ready_ns[2] = {0, 0};
    BusyTimes busy;
  };
  Stream& at(int number) { return streams_[static_cast<size_t>(number)]; }
  void land_up_to(int stream, uint64_t ticket);  // with the mutex held

  const Speed speed_;
  const std::function<void()> after_host_waits_;
  OrderCheck check_;
  std::recursive_mutex mutex_;
  std::vector<Stream> streams_;
  std::vector<Device> devices_;
  int64_t host_ns_ = 0;
  uint64_t copies_ = 0;
};

Streams& streams();  // of the installed devices
void make_streams(const Options& options, std::function<void()> after_host_waits);

// Each host thread chooses a device, and a stream of each device.
int device_count();
int current_device();
int exchange_device(int device);  // throws c10::Error if there is no such device
int current_stream(int device);
int exchange_stream(int number);  // of its device; returns the one before
int next_stream(int device);      // of the pool, in turn

}  // namespace sim

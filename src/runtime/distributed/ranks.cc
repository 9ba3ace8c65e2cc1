#include "runtime/distributed/ranks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "reprise/model/errors.h"
#include "reprise/runtime/peer_error.h"
#include "reprise/runtime/process_group.h"
#include "runtime/distributed/waiter.h"
#include "runtime/distributed/wire.h"

namespace reprise::runtime::internal::distributed {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// So often a rank that waits looks whether another one has failed.
constexpr Milliseconds kLook(100);
// A rank that waits for a text asks for it at first and at last after so long.
constexpr Milliseconds kFirstAsk(1), kLastAsk(20);
constexpr size_t kLongestFailure = 2000;  // bytes of a text in the store

// An UnderWay is a collective operation or a message under way. The backend works on an alias of the
// memory, so that a thread of its own never frees it.
struct UnderWay {
  c10::intrusive_ptr<c10d::Work> work;
  c10::Storage memory;
  std::shared_ptr<Signal> done;  // null for a message: nobody waits for it yet
  std::string what;
};

// Memory that a backend may still write is kept until the process ends.
struct Abandoned {
  std::mutex mutex;
  std::vector<std::pair<UnderWay, std::shared_ptr<void>>> all;
};

Abandoned& abandoned() {
  static auto* const kept =
      new Abandoned;  // It is never destroyed, because the writer may outlive us.
  return *kept;
}

// Returns how many steps of this process have asked for the group before.
int64_t number_in(const std::string& group) {
  static std::mutex mutex;
  static std::map<std::string, int64_t> numbers;
  const std::lock_guard<std::mutex> lock(mutex);
  return numbers[group]++;
}

std::function<void()>& while_waiting() {
  static auto* const look = new std::function<void()>;  // It may need an interpreter at its end.
  return *look;
}

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

std::string joined(const std::vector<std::string>& texts) {
  Packed all;
  for (const std::string& text : texts) all.add(text);
  return all.take();
}

std::vector<std::string> parted(std::string all) {
  std::vector<std::string> texts;
  for (Unpacked rest(std::move(all)); !rest.done();) texts.push_back(rest.text());
  return texts;
}

// Rank 0 tells an answer of its work, or an exception with its class.
enum Told : int64_t { kAnswer, kNoBudget, kWrongInput, kFailure };

// Throws again what rank 0 has thrown.
[[noreturn]] void throw_told(Told kind, Unpacked& rest) {
  const std::string message = rest.text();
  if (kind == kWrongInput) throw InputError(message);
  if (kind == kNoBudget) {
    const int64_t budget = rest.number(), live = rest.number(), requested = rest.number();
    throw BudgetError(message, budget, live, requested);
  }
  throw PeerError("rank 0 has failed: " + message);
}

// Returns a tensor on the same bytes that does not own them.
at::Tensor alias_of(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.options().requires_grad(false));
}

}  // namespace

std::string first_line(const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

struct Ranks::Group {
  std::string name, prefix;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0, size = 1;
  Milliseconds timeout{};
  int64_t exchanges = 0;
  std::string last_told;                            // by rank 0: the key of the last exchange
  std::map<size_t, std::vector<UnderWay>> started;  // by number
  std::optional<Waiter> waiter;                     // from the first message on
  std::string broken;                               // why nobody can use the group any more

  std::string key(const std::string& rest) const { return prefix + rest; }

  void require_sound() const {
    if (broken.empty()) return;
    throw PeerError(
        "this step has failed before, and the other ranks of the process group have stopped with "
        "it. Make a new process group, load model and optimizer on all ranks, and make the step "
        "anew. The failure: " +
        broken);
  }

  [[noreturn]] void fail(const std::string& reason) {
    if (broken.empty()) broken = reason;
    throw PeerError(reason);
  }

  // Asks the store, which another rank may serve.
  template <class Ask>
  auto ask(Ask&& question) {
    try {
      return question();
    } catch (const std::exception& error) {
      fail(
          fmt::format("rank {} cannot reach the store of the process group, perhaps because the "
                      "process that serves it has ended: {}",
                      rank, first_line(error)));
    }
  }
  bool has(const std::string& its_key) {
    return ask([&] { return store->check({its_key}); });
  }
  std::string get(const std::string& its_key) {
    return ask([&] { return text_of(store->get(its_key)); });
  }
  void set(const std::string& its_key, const std::string& text) {
    ask([&] { store->set(its_key, bytes_of(text)); });
  }
  void forget(const std::string& its_key) noexcept {
    try {
      store->deleteKey(its_key);
    } catch (...) {  // The process that serves the store has ended.
    }
  }

  // Throws PeerError if another rank has failed, and what the program's own look throws.
  void look() {
    if (const auto& own = while_waiting()) own();
    if (!has(key("failed"))) return;
    fail(
        fmt::format("the step of this rank {} cannot go on, because {}", rank, get(key("failed"))));
  }

  std::string seconds() const {
    return fmt::format("{} s", static_cast<double>(timeout.count()) / 1000);
  }

  // Returns the text of a key that rank `from` sets.
  std::string text_from(int from, const std::string& its_key, const std::string& what) {
    const Clock::time_point end = Clock::now() + timeout;
    Clock::time_point next_look = Clock::now() + kLook;
    for (Milliseconds pause = kFirstAsk; !has(its_key); pause = std::min(2 * pause, kLastAsk)) {
      const Clock::time_point now = Clock::now();
      if (now >= end) {
        fail(
            fmt::format("rank {} of the process group has waited {} for rank {} ({}), the timeout "
                        "of the group: "
                        "see whether that process is alive, and whether all ranks call Reprise in "
                        "the same order",
                        rank, seconds(), from, what));
      }
      if (now >= next_look) {
        look();
        next_look = now + kLook;
      }
      std::this_thread::sleep_for(pause);
    }
    return get(its_key);
  }

  UnderWay under_way(c10::intrusive_ptr<c10d::Work> work, const at::Tensor& tensor,
                     std::string what) {
    UnderWay transfer{std::move(work), tensor.storage(), std::make_shared<Signal>(),
                      std::move(what)};
    if (tensor.is_cpu()) {
      transfer.work->getFuture()->addCallback(
          [done = transfer.done](c10::ivalue::Future&) { done->set(); });
    }
    return transfer;
  }

  // Waits for a transfer. If it fails, its memory stays in `started` or is abandoned by the caller.
  void finish(const UnderWay& transfer, const at::Device& device) {
    const bool is_message = transfer.done == nullptr;
    if (is_message && !waiter) waiter.emplace();
    const std::shared_ptr<Signal> done = is_message ? waiter->wait(transfer.work) : transfer.done;
    const Clock::time_point end = Clock::now() + timeout + 2 * kLook;
    // On other devices wait() makes the stream wait and not the host.
    while ((is_message || device.is_cpu()) && !done->wait(kLook)) {
      look();
      if (Clock::now() < end) continue;
      fail(
          fmt::format("{} did not end on rank {} within {}, the timeout of the group: see whether "
                      "all processes of the group are alive and take the same steps",
                      transfer.what, rank, seconds()));
    }
    try {
      if (!is_message) transfer.work->wait();
      if (is_message && done->failure()) std::rethrow_exception(done->failure());
    } catch (const std::exception& error) {
      fail_for(error, transfer.what);
    }
  }

  // Throws PeerError for a transfer that the backend gave up. A rank that has failed tells the
  // reason, which is better than that of the connection.
  [[noreturn]] void fail_for(const std::exception& error, const std::string& what) {
    const std::string reason = first_line(error);
    for (int looks = 0; looks < 3; ++looks) {
      look();
      std::this_thread::sleep_for(kLook);
    }
    fail(fmt::format("{} failed on rank {}, perhaps because another process has ended: {}", what,
                     rank, reason));
  }

  // Starts a message. The backend may find then that the connection has ended.
  template <class Begin>
  void start_message(size_t number, const at::Tensor& tensor, const std::string& what,
                     Begin&& begin) {
    require_sound();
    std::vector<at::Tensor> list{alias_of(tensor)};
    try {
      started[number].push_back({begin(list), tensor.storage(), nullptr, what});
    } catch (const std::exception& error) {
      fail_for(error, what);
    }
  }

  // Runs a collective operation on a tensor and waits for it.
  template <class Begin>
  void whole(const at::Tensor& tensor, const std::string& what, Begin&& begin) {
    require_sound();
    std::vector<at::Tensor> list{alias_of(tensor)};
    const UnderWay transfer = under_way(begin(list), tensor, what);
    try {
      finish(transfer, tensor.device());
    } catch (...) {
      const std::lock_guard<std::mutex> lock(abandoned().mutex);
      abandoned().all.emplace_back(transfer, nullptr);
      throw;
    }
  }
};

Ranks::Ranks(const std::string& group, std::optional<Milliseconds> timeout)
    : group_(std::make_unique<Group>()) {
  group_->name = group;
  try {
    group_->group = c10d::resolve_process_group(group);
  } catch (const std::exception& error) {
    throw InputError(
        fmt::format("there is no process group with the name \"{}\" (torch.distributed."
                    "init_process_group() makes one): {}",
                    group, first_line(error)));
  }
  group_->store = group_->group->getStore();
  if (!group_->store) {
    throw InputError(
        fmt::format("the process group \"{}\" has no store, in which ranks tell each other what "
                    "they plan and why they fail",
                    group));
  }
  group_->rank = group_->group->getRank();
  group_->size = group_->group->getSize();
  group_->timeout =
      timeout.value_or(group_->group->getDefaultBackend()->getBackendOptions()->timeout);
  group_->prefix = fmt::format("reprise/{}/{}/", group, number_in(group));
}

Ranks::~Ranks() { abandon(nullptr); }

int Ranks::rank() const { return group_->rank; }
int Ranks::size() const { return group_->size; }

std::vector<std::string> Ranks::exchange(const std::string& mine, const std::string& what) {
  require_sound();
  Group& group = *group_;
  const std::string place = group.key(fmt::format("{}/", group.exchanges++));
  const std::string all = place + "all";
  // Nobody reads a text again, so that the store does not grow with the number of steps.
  if (group.rank != 0) {
    const std::string own = fmt::format("{}{}", place, group.rank);
    group.set(own, mine);
    std::vector<std::string> texts = parted(group.text_from(0, all, what));
    group.forget(own);  // Rank 0 has read it.
    return texts;
  }
  std::vector<std::string> texts{mine};
  for (int rank = 1; rank < group.size; ++rank) {
    texts.push_back(group.text_from(rank, fmt::format("{}{}", place, rank), what));
  }
  // All ranks are here, so that they have read what came before.
  if (!group.last_told.empty()) group.forget(group.last_told);
  group.last_told = all;
  group.set(all, joined(texts));
  return texts;
}

std::string Ranks::by_first(const std::string& what, const std::function<std::string()>& work) {
  require_sound();
  Group& group = *group_;
  const std::string key = group.key(fmt::format("{}/first", group.exchanges++));
  if (group.rank != 0) {
    Unpacked told(group.text_from(0, key, what));
    const auto kind = static_cast<Told>(told.number());
    if (kind != kAnswer) throw_told(kind, told);
    return told.text();
  }
  const auto tell_all = [&](Told kind, const std::string& text, std::vector<int64_t> numbers) {
    Packed all;
    all.add(kind).add(text);
    for (const int64_t number : numbers) all.add(number);
    group.set(key, all.take());
  };
  try {
    std::string answer = work();
    tell_all(kAnswer, answer, {});
    return answer;
  } catch (const BudgetError& error) {
    tell_all(kNoBudget, error.what(), {error.budget(), error.live(), error.requested()});
    throw;
  } catch (const InputError& error) {
    tell_all(kWrongInput, error.what(), {});
    throw;
  } catch (const PeerError&) {
    throw;
  } catch (const std::exception& error) {
    tell_all(kFailure, error.what(), {});
    throw;
  }
}

void Ranks::require_equal(const std::string& mine, const std::string& what,
                          const std::function<std::string(const Difference&)>& objection) {
  const std::vector<std::string> all = exchange(mine, what);
  std::vector<size_t> others;
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] != all[0]) others.push_back(rank);
  }
  if (others.empty()) return;
  throw InputError(objection({.ranks = fmt::format("{}", fmt::join(others, " and rank ")),
                              .first = all[0],
                              .other = all[others[0]]}));
}

void Ranks::maxima(std::vector<int64_t>& numbers, c10::Device device, const std::string& what) {
  const at::NoGradGuard no_grad;
  // The memory is not that of the allocator, because a thread of the backend may hold it for a while.
  const auto memory = std::make_shared<std::vector<int64_t>>(numbers);
  const at::Tensor host = at::from_blob(
      memory->data(), {static_cast<int64_t>(numbers.size())}, [memory](void*) {}, at::kLong);
  const at::Tensor tensor = host.to(device);
  group_->whole(tensor, what, [&](std::vector<at::Tensor>& list) {
    return group_->group->allreduce(list, {.reduceOp = c10d::ReduceOp::MAX});
  });
  if (!device.is_cpu()) host.copy_(tensor);
  numbers = *memory;
}

void Ranks::copy_from_first(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor plain = tensor.detach();
    const at::Tensor sent = plain.contiguous();
    group_->whole(sent, "the copy of rank 0's parameters and buffers",
                  [&](std::vector<at::Tensor>& list) { return group_->group->broadcast(list); });
    if (!sent.is_alias_of(plain)) plain.copy_(sent);
  }
}

void Ranks::start_sum(size_t number, const at::Tensor& tensor, const std::string& what) {
  require_sound();
  std::vector<at::Tensor> list{alias_of(tensor)};
  std::vector<UnderWay>& started = group_->started[number];
  started.push_back(group_->under_way(group_->group->allreduce(list), tensor, what));
}

void Ranks::start_gather(size_t number, const at::Tensor& tensor,
                         const std::vector<std::pair<int64_t, int64_t>>& parts,
                         const std::string& what) {
  require_sound();
  std::vector<UnderWay>& started = group_->started[number];
  for (int rank = 0; rank < group_->size; ++rank) {
    const auto [first, elements] = parts[rank];
    if (elements == 0 || group_->size == 1) continue;
    const at::Tensor part = tensor.narrow(0, first, elements);
    std::vector<at::Tensor> list{alias_of(part)};
    started.push_back(
        group_->under_way(group_->group->broadcast(list, {.rootRank = rank}), part, what));
  }
}

void Ranks::start_send(size_t number, const at::Tensor& tensor, int rank, const std::string& what) {
  group_->start_message(number, tensor, what, [&](std::vector<at::Tensor>& list) {
    return group_->group->send(list, rank, /*tag=*/0);
  });
}

void Ranks::start_receive(size_t number, const at::Tensor& tensor, int rank,
                          const std::string& what) {
  group_->start_message(number, tensor, what, [&](std::vector<at::Tensor>& list) {
    return group_->group->recv(list, rank, /*tag=*/0);
  });
}

void Ranks::wait(size_t number) {
  const auto started = group_->started.find(number);
  if (started == group_->started.end()) {
    throw InternalError("a plan waits for a sum, a copy or a message that was not started");
  }
  for (const UnderWay& transfer : started->second) {
    group_->finish(transfer, transfer.memory.device());
  }
  group_->started.erase(started);
}

void Ranks::tell(const std::string& failure) noexcept {
  try {
    Group& group = *group_;
    if (!group.broken.empty()) return;
    const std::string text =
        fmt::format("rank {} has failed: {}", group.rank, failure.substr(0, kLongestFailure));
    group.broken = text;
    group.store->compareSet(group.key("failed"), {}, bytes_of(text));
  } catch (...) {  // The others see this rank's connection end, or wait until the timeout.
  }
}

void Ranks::require_sound() const { group_->require_sound(); }

void Ranks::abandon(std::shared_ptr<void> arena) noexcept {
  try {
    for (auto& [number, transfers] : group_->started) {
      for (UnderWay& transfer : transfers) {
        if (transfer.work->isCompleted()) continue;
        const std::lock_guard<std::mutex> lock(abandoned().mutex);
        abandoned().all.emplace_back(std::move(transfer), arena);
      }
    }
    group_->started.clear();
  } catch (...) {
  }
}

}  // namespace reprise::runtime::internal::distributed

namespace reprise::runtime {

void look_while_waiting(std::function<void()> look) {
  internal::distributed::while_waiting() = std::move(look);
}

void tell_failure(const std::string& group, const std::string& reason) {
  internal::distributed::Ranks(group).tell(reason);
}

}  // namespace reprise::runtime

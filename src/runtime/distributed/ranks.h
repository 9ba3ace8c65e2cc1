// These are the processes that train together with this one: a process group of c10d, and its
// store.
//
// Every wait is bounded by the timeout of the group. A rank that fails says so in the store, and all
// ranks that wait for it throw at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace reprise::runtime::internal::distributed {

// A Ranks belongs to one step, captured or in parts. All ranks of the group make the Ranks of their
// steps in the same order. It is not thread-safe.
class Ranks {
 public:
  // Finds the group with this name in c10d's registry. Throws InputError if there is none. Without a
  // timeout it takes that of the group.
  explicit Ranks(const std::string& group,
                 std::optional<std::chrono::milliseconds> timeout = std::nullopt);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const;
  int size() const;

  // These functions are called by all ranks in the same order. They throw PeerError if a rank has failed
  // or does not answer in time; the message names the rank. `what` says in a message what is waited
  // for.
  //
  // Returns the texts of all ranks, by rank.
  std::vector<std::string> exchange(const std::string& mine, const std::string& what);
  // Runs `work` on rank 0, and returns its text on all ranks. If it throws, all ranks throw: a
  // BudgetError or an InputError with the same message, or a PeerError for another exception.
  std::string by_first(const std::string& what, const std::function<std::string()>& work);
  // A Difference says which ranks have another text than rank 0, and what the first of them has.
  struct Difference {
    std::string ranks, first, other;
  };
  // Throws InputError on all ranks, with the message of `objection`, unless they have the same text.
  void require_equal(const std::string& mine, const std::string& what,
                     const std::function<std::string(const Difference&)>& objection);
  // Makes each number the largest one of all ranks. All ranks have as many numbers.
  void maxima(std::vector<int64_t>& numbers, c10::Device device, const std::string& what);
  // Gives the tensors the bits that they have on rank 0.
  void copy_from_first(const std::vector<at::Tensor>& tensors);

  // Starts the sum of a tensor over all ranks, in place, and returns at once. Until wait() for the
  // same number nobody may touch the memory, and it must stay where it is.
  void start_sum(size_t number, const at::Tensor& tensor, const std::string& what);
  // Starts to copy parts of a tensor to all ranks, in place: `parts` has the first element and the
  // number of elements of each rank's part, by rank. The tensor has one dimension. Otherwise like
  // start_sum().
  void start_gather(size_t number, const at::Tensor& tensor,
                    const std::vector<std::pair<int64_t, int64_t>>& parts, const std::string& what);
  // Starts to send a tensor to another rank, or to fill it with what that rank sends. Messages from
  // one rank to another arrive in the order in which both of them start them. Otherwise like
  // start_sum().
  void start_send(size_t number, const at::Tensor& tensor, int rank, const std::string& what);
  void start_receive(size_t number, const at::Tensor& tensor, int rank, const std::string& what);
  void wait(size_t number);

  // Tells the other ranks that this one has failed, unless that is known already. Nobody can use the
  // group through this Ranks any more. Does nothing if the store cannot be reached.
  void tell(const std::string& failure) noexcept;
  // Throws PeerError if this rank has failed before, or has seen that another one has.
  void require_sound() const;
  // Drops all sums, copies and messages that were started. The memory of those that are still under way is
  // kept until the process ends, together with `arena`.
  void abandon(std::shared_ptr<void> arena) noexcept;

 private:
  struct Group;
  std::unique_ptr<Group> group_;
};

// Returns the first line of an exception's message, without PyTorch's backtrace.
std::string first_line(const std::exception& error);

// Calls the function. If it throws and there are ranks, they hear of it.
template <class Function>
decltype(auto) telling(Ranks* ranks, Function&& function) {
  try {
    return function();
  } catch (const std::exception& error) {
    if (ranks != nullptr) ranks->tell(error.what());
    throw;
  }
}

}  // namespace reprise::runtime::internal::distributed

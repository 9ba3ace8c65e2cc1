// Host reads are numbers that a step reads out of tensors, on which its branches and sizes depend.
// Each becomes a guard, an operation of the recording that reads the same tensor and expects the
// number of the capture. A replay that meets another number ends there.
//
// A guard takes part in the recording as a call of an operator of ours:
//
//   reprise::expect_number(Tensor self, int expected, int read)            item(), bool(), int()
//   reprise::expect_equal(Tensor self, Tensor other, int expected, int read)       torch.equal()
//   reprise::expect_count(Tensor self, int expected, int read)    how many elements a mask selects
//
// `read` is the position of the guard among those of its recording. The kernels compare, and throw
// a ReadMiss. A boolean is 0 or 1. Numbers that are not whole are refused: they hardly ever repeat.
//
// Where the function runs beside each replay (CaptureOptions::follow), it gets the numbers of that
// run. Then the recording expects nothing but counts, and has these operators in place of the first
// two:
//
//   reprise::give_number(Tensor self, int read) -> ()
//   reprise::give_equal(Tensor self, Tensor other, int read) -> ()
//   reprise::host_copy(Tensor self) -> Tensor          NumPy, tolist(), print(): called by bindings
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "reprise/model/errors.h"
#include "runtime/step/recording.h"

namespace reprise::runtime::internal::step {

// Says whether the operator gives the host a number out of a tensor.
bool reads_on_host(const c10::OperatorHandle& op);

// Says whether the operator counts elements of masks to know the size of its result.
bool sizes_by_count(const c10::OperatorHandle& op);

// A Mask is a tensor among the arguments of a call. The number of its elements that are not zero
// decides about the size of the call's result.
struct Mask {
  size_t argument = 0;
  size_t item = 0;  // in a list of tensors

  bool operator==(const Mask&) const = default;
};
std::vector<Mask> masks_of(const Call& call);
inline bool sizes_by_values(const Call& call) { return !masks_of(call).empty(); }

// Returns how many elements of the mask are not zero.
int64_t count_of(const at::Tensor& mask);

// Makes the guards of a recording. `read` is the number of guards before this one.
Call guard_of_read(const Call& call, const c10::IValue& result, size_t read);
Call guard_of_count(const Call& call, const Mask& mask, int64_t count, size_t read);

// Returns the guard of a read whose number goes to the function.
Call guard_that_gives(const Call& call, size_t read);

bool is_guard(const Call& call);
// Says whether the call is a guard that expects a number.
bool expects_number(const Call& call);
// Says whether the host gets something out of tensors by the call: a guard, or a copy.
bool is_host_read(const Call& call);
// Says whether the operator copies a tensor for the host.
bool copies_for_host(const c10::OperatorHandle& op);
// Returns a copy of the tensor's bytes in host memory, by the operator that follow mode knows.
at::Tensor host_copy(const at::Tensor& tensor);

// While an AsFollowed lives, what this thread records gives its host reads to the function.
class AsFollowed {
 public:
  explicit AsFollowed(bool followed);
  ~AsFollowed();
  AsFollowed(const AsFollowed&) = delete;
  AsFollowed& operator=(const AsFollowed&) = delete;

 private:
  const bool before_;
};
bool is_followed();

// While a GivenNumbers lives, it gets the numbers that guards on this thread give.
class GivenNumbers {
 public:
  GivenNumbers();
  ~GivenNumbers();
  GivenNumbers(const GivenNumbers&) = delete;
  GivenNumbers& operator=(const GivenNumbers&) = delete;

  void put(int64_t read, c10::IValue number) { numbers_.insert_or_assign(read, std::move(number)); }
  // Returns what the guard has given.
  const c10::IValue& of(const Call& guard) const;

 private:
  GivenNumbers* outer_;
  std::map<int64_t, c10::IValue> numbers_;
};

// A HostRead is what a guard expects, in words for people.
struct HostRead {
  int64_t expected = 0;
  bool is_bool = false;    // the number is a boolean
  std::string what = {};   // "the number that the step reads on the host"
  std::string place = {};  // "train.py:41"; empty if not known

  bool operator==(const HostRead&) const = default;
};

HostRead host_read(const Call& guard);
// Returns what the guards of the recording expect, in order. Guards that give expect nothing.
std::vector<HostRead> host_reads(const Recording& recording);

// Returns the number as a program writes it: "True", "17".
std::string text_of(const HostRead& read, int64_t number);
// Returns what is expected, in words: "True, a number that the step reads out of a tensor at a:3".
std::string describe(const HostRead& read);
// Says what differs: "the number that the step reads on the host at a.py:3 was 4 and is 5".
std::string difference_of(const HostRead& read, int64_t found);

// A ReadMiss ends a replay whose read gives another number than in the capture.
class ReadMiss : public InputError {
 public:
  ReadMiss(size_t read, int64_t expected, int64_t found);
  size_t read() const { return read_; }
  int64_t found() const { return found_; }

 private:
  size_t read_;
  int64_t found_;
};

// While an AtFirstRead lives, `visit` is called before the first host read that a recording on this
// thread notes.
class AtFirstRead {
 public:
  explicit AtFirstRead(std::function<void()> visit);
  ~AtFirstRead();
  AtFirstRead(const AtFirstRead&) = delete;
  AtFirstRead& operator=(const AtFirstRead&) = delete;

 private:
  AtFirstRead* outer_;
  std::function<void()> visit_;

  friend void note_host_read();
};
void note_host_read();

}  // namespace reprise::runtime::internal::step

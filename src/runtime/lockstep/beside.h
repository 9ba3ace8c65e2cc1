// The replay that runs beside the function of a followed step, as the function sees it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/step/recording.h"

namespace reprise::runtime::internal::lockstep {

// A HeldShell is a storage that the function got, and the value that it stands for.
struct HeldShell {
  int32_t value = -1;
  c10::Storage storage;
};

// A Leaving says how far the function has come when it goes on by itself.
struct Leaving {
  size_t calls = 0, left_out = 0;  // of the recording: those that it has made
  std::vector<HeldShell> shells;   // that it holds
  std::string difference;
  bool adds = false;  // whether it adds to gradients from before
  // The random states that it may set later are those before these calls. It has set that before
  // `random_at`, if that is there.
  std::set<size_t> random_states;
  std::optional<size_t> random_at;
};

// Calls and externals are positions in the recording that is followed.
class ReplayBeside {
 public:
  virtual ~ReplayBeside() = default;

  // Replays up to a guard that gives a number to the host, and returns the number.
  virtual c10::IValue number(size_t guard) = 0;
  // Replays up to a guard that expects a number. Throws ReadMiss if it is another one.
  virtual void expect(size_t guard) = 0;
  // Replays up to a call that copies a tensor for the host, and returns its result.
  virtual c10::Storage copied(size_t call, int32_t value) = 0;

  // Lets this run use another number as an argument, or another tensor in the place of an external,
  // which begins so many bytes later in its storage. Returns false if the plan in force cannot.
  virtual bool use(size_t call, size_t argument, const c10::IValue& number) = 0;
  virtual bool use(size_t external, const at::Tensor& tensor, int64_t later) = 0;

  // The function's next call is not the recorded one. Returns another recording whose calls before
  // that one are the same (`calls`, and so many that were left out); null if there is none.
  virtual const step::Recording* other(size_t calls, size_t left_out) = 0;
  // There is no such recording. Runs the calls before this one and gives bytes to the shells, so
  // that the function goes on by itself. If it adds to gradients from before, what follows is no
  // recording for other runs.
  virtual void leave(const Leaving& leaving) = 0;
  // Sets the random state from before this call, which is one of Leaving::random_states.
  virtual void set_random_state(size_t call) = 0;
};

}  // namespace reprise::runtime::internal::lockstep

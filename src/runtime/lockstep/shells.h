// Shells are storages of tensors that look as in the recording and have no bytes.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/lockstep/beside.h"
#include "runtime/step/recording.h"

namespace reprise::runtime::internal::lockstep {

// This text is in the message of the exception that meets whoever takes the pointer of a shell.
inline constexpr std::string_view kNoBytes =
    "this tensor has no bytes, because Reprise made it when it ran the function of a captured step "
    "beside the recording (lockstep), where operators compute nothing";

// Returns a storage of this size without bytes.
c10::Storage shell(int64_t bytes, c10::Device device);

// Gives a shell the bytes of another storage, which has none afterwards.
void fill(const c10::Storage& shell, const c10::Storage& bytes);

// Returns host memory that no budget counts, for the program to write literals into. Its bytes are
// those of memory that nobody has written.
c10::Storage blank_memory(int64_t bytes);

// A Home is what a storage of the running function is in the recording.
struct Home {
  step::Memory memory = step::Memory::kNone;
  int32_t index = -1;

  bool operator==(const Home&) const = default;
};

// Homes knows the storages that the function has got. It keeps none of them alive, because autograd
// does other things with memory that others hold, too.
class Homes {
 public:
  void put(const c10::Storage& storage, Home home);
  // Returns kNone for a storage that is not known.
  Home of(const c10::Storage& storage) const;
  // Returns the storage that has got this home last, or nothing if it is gone.
  c10::Storage storage_of(Home home) const;
  // Returns the shells of values that are alive, by value. A value that was made again may have
  // several.
  std::vector<HeldShell> held() const;
  // Gives a storage that is known another home.
  void move(const c10::Storage& storage, Home to);

 private:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  struct Entry {
    Weak alive;  // keeps the address from being used again
    Home home;
  };
  static int64_t key_of(Home home) {
    return int64_t{home.index} * 4 + static_cast<int64_t>(home.memory);
  }

  std::unordered_map<const void*, Entry> by_storage_;
  std::unordered_map<int64_t, const void*> by_home_;
};

}  // namespace reprise::runtime::internal::lockstep

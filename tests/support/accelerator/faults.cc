#include "faults.h"

#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstring>

#include "device_memory.h"
#include "pinned_memory.h"

namespace sim {
namespace {

struct sigaction before {};

struct Cause {
  bool writes = false;
  bool known = false;
};

Cause cause_of([[maybe_unused]] void* context) {
#if defined(__x86_64__) && defined(REG_ERR)
  constexpr greg_t kWrite = 2;  // of the processor's error code for page faults
  const auto* const user = static_cast<const ucontext_t*>(context);
  return {(user->uc_mcontext.gregs[REG_ERR] & kWrite) != 0, true};
#else
  return {};
#endif
}

void say(const char* text) {
  const auto written = write(STDERR_FILENO, text, std::strlen(text));
  static_cast<void>(written);
}

void pass_on(int signal, siginfo_t* info, void* context) {
  if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction != nullptr) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  } else {
    ::signal(signal, SIG_DFL);  // the access is tried again, and then ends the process
  }
}

void handle(int signal, siginfo_t* info, void* context) {
  auto* const address = static_cast<char*>(info->si_addr);
  const Cause cause = cause_of(context);
  if (pinned_memory().touched(address, cause.writes, cause.known)) return;
  if (memory_with_front(address) != nullptr) {
    say("sim: the host touched memory of a device; copy the tensor to the host first\n");
  }
  pass_on(signal, info, context);
}

}  // namespace

void install_fault_handler() {
  struct sigaction action {};
  action.sa_sigaction = &handle;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &before);
}

}  // namespace sim

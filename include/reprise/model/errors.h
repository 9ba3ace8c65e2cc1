// Three exception classes reach a user of this library. An exception is a mistake: in somebody's
// input, in a budget that does not hold, or in this library. Expected outcomes (infeasible, out of
// time) are values; see plan/plan.h.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace reprise {

// A Location says where in an input something is wrong. An empty or zero field is unknown. The
// fields have defaults so that {.pointer = "..."} compiles without a warning.
struct Location {
  std::string file = {};
  std::string pointer = {};  // a JSON pointer (RFC 6901); "" is the whole document
  int64_t line = 0;          // The first line is line 1.

  bool operator==(const Location&) const = default;
};

// Returns "file:line: at /stages/3/options/0: message", without the parts that are unknown.
std::string format_location(const Location& location, const std::string& message);

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller's input is wrong: a file, an argument, a value structure, a module that cannot be
// used. what() says what is wrong, where, and what to do.
class InputError : public Error {
 public:
  explicit InputError(const std::string& message, Location where = {});
  const Location& where() const { return where_; }

 private:
  Location where_;
};

// A run asked for more bytes than its budget. All that the run touched is as it was before.
class BudgetError : public Error {
 public:
  // The numbers are bytes: the limit, what was live, and what the refused request asked for.
  BudgetError(const std::string& message, int64_t budget, int64_t live, int64_t requested)
      : Error(message), budget_(budget), live_(live), requested_(requested) {}
  int64_t budget() const { return budget_; }
  int64_t live() const { return live_; }
  int64_t requested() const { return requested_; }

 private:
  int64_t budget_, live_, requested_;
};

// An InternalError says that a promise of this library is broken. Such an error is always a defect;
// please report it.
class InternalError : public Error {
 public:
  using Error::Error;
};

}  // namespace reprise

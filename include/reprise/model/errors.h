// The three exception classes that reach a user of this library. Expected outcomes (infeasible, out
// of time) are values, see plan/plan.h; these are mistakes: somebody's input, a broken budget, ours.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace reprise {

// Where in an input something is wrong. Empty and zero fields are unknown. Written with defaults so that
// {.pointer = "..."} compiles without a warning.
struct Location {
  std::string file = {};
  std::string pointer = {};  // JSON pointer (RFC 6901), "" is the whole document
  int64_t line = 0;     // 1-based

  bool operator==(const Location&) const = default;
};

// "file:line: at /stages/3/options/0: message", without the parts that are unknown.
std::string format_location(const Location& location, const std::string& message);

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller's input is wrong: a file, an argument, a value structure, a module that cannot be used.
// what() says what is wrong, where, and what to do.
class InputError : public Error {
 public:
  explicit InputError(const std::string& message, Location where = {});
  const Location& where() const { return where_; }

 private:
  Location where_;
};

// A run asked for more bytes than its budget. Everything the run touched is as it was before.
class BudgetError : public Error {
 public:
  // All in bytes: the limit, what was live, what the refused request asked for.
  BudgetError(const std::string& message, int64_t budget, int64_t live, int64_t requested)
      : Error(message), budget_(budget), live_(live), requested_(requested) {}
  int64_t budget() const { return budget_; }
  int64_t live() const { return live_; }
  int64_t requested() const { return requested_; }

 private:
  int64_t budget_, live_, requested_;
};

// A promise of this library is broken; always a defect worth reporting.
class InternalError : public Error {
 public:
  using Error::Error;
};

}  // namespace reprise

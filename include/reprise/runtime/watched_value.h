// These are values of the program that a captured step depends on.
#pragma once

#include <charconv>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

namespace reprise::runtime {

// A WatchedValue is a value of the program, such as a factor of the loss or the probability of a dropout. It
// is read when the step is captured and before each run; another text is a miss.
struct WatchedValue {
  std::string name;                   // for messages
  std::function<std::string()> read;  // returns the value as a text
};

// Watches a variable: a bool, a number, an enumerator or a string. The variable must live as long as
// the captured step, and stay where it is. Numbers with a fraction are compared to the last bit, but
// for the bits of NaN.
//
//   options.watched = {rt::watch("beta", beta), {"dropout", [&] { return to_text(net->drop); }}};
template <class T>
WatchedValue watch(std::string name, const T& value) {
  if constexpr (std::is_convertible_v<const T&, std::string>) {
    return {std::move(name), [&value] { return std::string(value); }};
  } else if constexpr (std::is_same_v<T, bool>) {
    return {std::move(name), [&value] { return std::string(value ? "true" : "false"); }};
  } else if constexpr (std::is_enum_v<T>) {
    return {std::move(name),
            [&value] { return std::to_string(static_cast<std::underlying_type_t<T>>(value)); }};
  } else {
    static_assert(std::is_arithmetic_v<T>,
                  "watch() takes a bool, a number, an enumerator or a string; for anything else, "
                  "give a WatchedValue with a function that returns a text");
    return {std::move(name), [&value] {
              char text[64];
              const std::to_chars_result end = std::to_chars(text, text + sizeof text, value);
              return std::string(text, end.ptr);
            }};
  }
}

// A reference to a temporary would be read after its end.
template <class T>
WatchedValue watch(std::string name, const T&& value) = delete;

}  // namespace reprise::runtime

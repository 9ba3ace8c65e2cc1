// Expects that a call is refused, and that the error says why.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "reprise/model/errors.h"

namespace reprise::testing {

// Returns the message of the InputError that the call throws, or "not refused".
inline std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "not refused";
}

inline void expect_refusal(const std::function<void()>& call, const std::string& part) {
  const std::string said = refusal(call);
  EXPECT_NE(said.find(part), std::string::npos) << said;
}

}  // namespace reprise::testing

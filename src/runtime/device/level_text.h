// Says what the bytes that live beside a step have to do with a budget in which there is no plan.
#pragma once

#include <string>

#include "reprise/model/units.h"

namespace reprise::runtime::internal::device {

// Each text begins with the end of a line, and is empty if there is nothing to say.

// `bytes` will be taken outside of the step: the state of optimizers.
std::string with_foreseen(Bytes bytes);
// `level` bytes live beside the step now, and `planned` ones did when it was planned.
std::string with_growth(Bytes planned, Bytes level);

}  // namespace reprise::runtime::internal::device

// Makes up chains from a seed. The numbers are the same on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "reprise/model/chain.h"

namespace reprise::bench {

// uniform   equal stages
// period4   blocks of four different stages, repeated
// cnn       sizes halve at four points of the chain, times differ
// random    sizes and times differ
// noisy     equal sizes, times +-2 %: a uniform chain as measured
const std::vector<std::string>& family_names();

// Each stage has one option, gradients are as large as activations, and weight gradients are
// outside: this is the model of the published solver. Throws InputError for an unknown family.
Chain make_chain(const std::string& family, size_t stages, uint64_t seed);

}  // namespace reprise::bench

// Chooses the mode of a training that names none.
#pragma once

#include <string>

#include "training/train.h"

namespace reprise::training {

// Sets the mode of options that leave it open, as far as that is known without a capture: graph mode
// if they ask for what only graph mode has, or chain mode. Returns the reason for chain mode, or an
// empty text.
std::string choose_mode(TrainOptions& options);

}  // namespace reprise::training

// Writes the energy of a plan into the JSON of a result or an explanation.
#pragma once

#include "io/writer.h"
#include "reprise/report/energy.h"

namespace reprise::report {

void write_energy_use(io::Writer& writer, const char* key, const EnergyUse& use);
// Writes the energy as the key "energy" of the object that is open.
void write_energy(io::Writer& writer, const EnergyReport& energy);

}  // namespace reprise::report

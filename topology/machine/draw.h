// A Machine and its affinity as people look at them: a tree with the matrix of distances as text,
// and as a picture.
#pragma once

#include <string>

#include "topology/machine/affinity.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// The tree, the matrix of accelerators and NUMA nodes by NICs, and a legend; lines of UTF-8.
std::string draw_text(const Machine& machine, const Affinity& affinity);

// Draws that tree as an SVG picture with nested boxes. A line joins each accelerator to its first
// NIC.
std::string draw_svg(const Machine& machine, const Affinity& affinity);

}  // namespace hetcomm::topology

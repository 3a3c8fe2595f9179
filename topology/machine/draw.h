// Draws a Machine and its affinity for users, either as text with a tree and a matrix of distances,
// or as a picture.
#pragma once

#include <string>

#include "topology/machine/affinity.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// Returns UTF-8 text with the tree, a matrix and a legend. The matrix has a row for each
// accelerator and NUMA node, and a column for each NIC. If the machine has no NIC, a note replaces
// the matrix and the legend.
std::string draw_text(const Machine& machine, const Affinity& affinity);

// Returns an SVG picture that shows the same tree as nested boxes. A line connects each accelerator
// to its first NIC.
std::string draw_svg(const Machine& machine, const Affinity& affinity);

}  // namespace hetcomm::topology

// Draws a Machine and its affinity for people: as text with a tree and a matrix of distances, and
// as a picture.
#pragma once

#include <string>

#include "topology/machine/affinity.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// Draws the tree, a matrix of accelerators and NUMA nodes by NICs, and a legend, as lines of UTF-8.
std::string draw_text(const Machine& machine, const Affinity& affinity);

// Draws the tree of draw_text() as an SVG picture with nested boxes. A line joins each accelerator
// to its first NIC.
std::string draw_svg(const Machine& machine, const Affinity& affinity);

}  // namespace hetcomm::topology

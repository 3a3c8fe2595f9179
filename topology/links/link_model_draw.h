// A LinkModel in readable form: tables of text, and a heat map of the pairs of hosts.
#pragma once

#include <string>

#include "topology/links/link_model.h"

namespace hetcomm::topology {

// Draws clusters with their hosts, hosts with their NICs, paths, and the rates of single pairs as a
// matrix, as lines of UTF-8. With many hosts the matrix shows one host for each cluster.
std::string draw_text(const LinkModel& model);

// Draws the rate that each pair of hosts has alone as an SVG picture, sorted by cluster. Rows are
// sending hosts and columns receiving ones. Darker is faster, on a logarithmic scale. It shows the
// first 256 hosts.
std::string draw_svg(const LinkModel& model);

}  // namespace hetcomm::topology

// Draws a LinkModel for people: as text, and as a heat map of the rates between hosts.
#pragma once

#include <string>

#include "topology/links/link_model.h"

namespace hetcomm::topology {

// Draws the model as lines of UTF-8: clusters, the NICs of each host, paths, and a matrix of the
// rate that each pair of hosts has alone. With more than 16 hosts, the matrix shows one host of
// each cluster.
std::string draw_text(const LinkModel& model);

// Draws the rate that each pair of hosts has alone as an SVG picture. Hosts are sorted by cluster.
// Rows are sending hosts and columns are receiving hosts. Darker cells are faster, on a logarithmic
// scale. The picture shows the first 256 hosts only.
std::string draw_svg(const LinkModel& model);

}  // namespace hetcomm::topology

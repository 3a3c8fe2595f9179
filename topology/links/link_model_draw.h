// Draws a LinkModel for users: as text, and as a heat map of the rates between hosts.
#pragma once

#include <string>

#include "topology/links/link_model.h"

namespace hetcomm::topology {

// Draws the model as lines of UTF-8: clusters, the NICs of each host, paths, and a matrix of the
// rate between each pair of hosts when no other pair sends. With more than 16 hosts, the matrix
// shows only the first host of each cluster, for at most 16 clusters.
std::string draw_text(const LinkModel& model);

// Draws the rate between each pair of hosts, when no other pair sends, as an SVG picture. Hosts are
// sorted by cluster. Rows are sending hosts and columns are receiving hosts. Darker cells are
// faster, on a logarithmic scale. The picture shows only the first 256 hosts.
std::string draw_svg(const LinkModel& model);

}  // namespace hetcomm::topology

// Sends and receives texts between ranks: plans of a measurement, and results.
#pragma once

#include <string>

#include <hetcomm/hetcomm.h>

namespace tools {

// Both functions block. A failure ends the process.
void send_text(hetcomm_communicator_t* communicator, int rank, std::string text);
std::string receive_text(hetcomm_communicator_t* communicator, int rank);

// Returns the label of this rank's host: HETCOMM_HOST_LABEL, else the host name.
std::string own_host_label();

}  // namespace tools

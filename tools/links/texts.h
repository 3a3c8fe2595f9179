// Sends and receives the texts that the ranks of a job exchange to plan a measurement.
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

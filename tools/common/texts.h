// Sends and receives texts between ranks: plans of a measurement, and results.
#pragma once

#include <string>

#include <hetcomm/hetcomm.h>

namespace tools {

// send_text() and receive_text() block. A failure terminates the process.
void send_text(hetcomm_communicator_t* communicator, int rank, std::string text);
std::string receive_text(hetcomm_communicator_t* communicator, int rank);

// Returns the label of this rank's host: HETCOMM_HOST_LABEL, or the host name if that is not set.
std::string own_host_label();

}  // namespace tools

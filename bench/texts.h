// Texts that the ranks of a job exchange while they plan a measurement.
#pragma once

#include <string>

#include <hetcomm/hetcomm.h>

namespace bench {

// Both functions block. A failure ends the process.
void send_text(hetcomm_communicator_t* communicator, int rank, std::string text);
std::string receive_text(hetcomm_communicator_t* communicator, int rank);

// The label of this rank's host: HETCOMM_HOST_LABEL, else the host's own name.
std::string own_host_label();

}  // namespace bench

// Texts that ranks of a job send each other while they plan a measurement.
#pragma once

#include <string>

#include <hetcomm/hetcomm.h>

namespace bench {

// These two block. A failure ends the process.
void send_text(hetcomm_communicator_t* communicator, int rank, std::string text);
std::string receive_text(hetcomm_communicator_t* communicator, int rank);

// The name by which this rank's host is known: HETCOMM_HOST_LABEL, else the host's own.
std::string own_host_label();

}  // namespace bench

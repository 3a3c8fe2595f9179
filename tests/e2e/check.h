// check() for programs that act as a rank: it prints a failed call on standard output and ends the
// process.
#pragma once

#include <unistd.h>

#include <cstdio>

#include <hetcomm/hetcomm.h>

inline void check(hetcomm_status_t status, const char* what) {
  if (status == HETCOMM_OK) return;
  std::printf("FAILED %s: %s: %s\n", what, hetcomm_status_name(status), hetcomm_last_error());
  std::fflush(stdout);
  _exit(1);
}
#define CHECK(call) check((call), #call)

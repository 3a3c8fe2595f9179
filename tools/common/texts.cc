#include "tools/common/texts.h"

#include <unistd.h>

#include <cstdlib>

#include "tools/common/session.h"

namespace tools {
namespace {

constexpr uint64_t kTextTag = 3;

}  // namespace

void send_text(hetcomm_communicator_t* communicator, int rank, std::string text) {
  hetcomm_request_t* request = nullptr;
  require(hetcomm_send(communicator, rank, kTextTag, hetcomm_buffer_host(text.data(), text.size()),
                       nullptr, &request),
          "sending to another rank");
  wait(request);
}

std::string receive_text(hetcomm_communicator_t* communicator, int rank) {
  hetcomm_completion_t message{};
  require(hetcomm_probe(communicator, rank, kTextTag, HETCOMM_EXACT_TAG, HETCOMM_TIMEOUT_INFINITE,
                        &message),
          "waiting for another rank");
  std::string text(static_cast<size_t>(message.bytes_sent), '\0');
  hetcomm_request_t* request = nullptr;
  require(hetcomm_recv(communicator, rank, kTextTag, HETCOMM_EXACT_TAG,
                       hetcomm_buffer_host(text.data(), text.size()), nullptr, &request),
          "receiving from another rank");
  wait(request);
  return text;
}

std::string own_host_label() {
  if (is_set("HETCOMM_HOST_LABEL")) return std::getenv("HETCOMM_HOST_LABEL");
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace tools

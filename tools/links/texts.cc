#include "tools/links/texts.h"

#include <unistd.h>

#include <cstdlib>

#include "tools/common/session.h"

namespace tools {
namespace {

constexpr uint64_t kTextTag = 3;

void finish(hetcomm_request_t* request) {
  hetcomm_completion_t completion;
  require(hetcomm_request_wait(request, HETCOMM_TIMEOUT_INFINITE, &completion), "waiting");
  if (completion.status != HETCOMM_OK) fail(completion.text);
}

}  // namespace

void send_text(hetcomm_communicator_t* communicator, int rank, std::string text) {
  hetcomm_request_t* request = nullptr;
  require(hetcomm_send(communicator, rank, kTextTag, hetcomm_buffer_host(text.data(), text.size()),
                       nullptr, &request),
          "sending a plan or its results");
  finish(request);
}

std::string receive_text(hetcomm_communicator_t* communicator, int rank) {
  hetcomm_completion_t message{};
  require(hetcomm_probe(communicator, rank, kTextTag, HETCOMM_EXACT_TAG, HETCOMM_TIMEOUT_INFINITE,
                        &message),
          "waiting for a plan or its results");
  std::string text(static_cast<size_t>(message.bytes_sent), '\0');
  hetcomm_request_t* request = nullptr;
  require(hetcomm_recv(communicator, rank, kTextTag, HETCOMM_EXACT_TAG,
                       hetcomm_buffer_host(text.data(), text.size()), nullptr, &request),
          "receiving a plan or its results");
  finish(request);
  return text;
}

std::string own_host_label() {
  if (is_set("HETCOMM_HOST_LABEL")) return std::getenv("HETCOMM_HOST_LABEL");
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

}  // namespace tools

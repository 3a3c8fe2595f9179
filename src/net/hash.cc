#include "src/net/hash.h"

#include <cstdlib>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

namespace hetcomm {
namespace {

const unsigned char* raw(ConstByteSpan bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

// Aborts if a computation has failed, because its output must never be used as a digest.
void require(bool worked) {
  if (!worked) std::abort();
}

}  // namespace

Digest sha256(ConstByteSpan bytes) {
  Digest digest{};
  unsigned int length = 0;
  require(EVP_Digest(raw(bytes), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()),
                     &length, EVP_sha256(), nullptr) == 1 &&
          length == digest.size());
  return digest;
}

Digest hmac_sha256(ConstByteSpan key, ConstByteSpan bytes) {
  Digest digest{};
  unsigned int length = 0;
  require(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), raw(bytes), bytes.size(),
               reinterpret_cast<unsigned char*>(digest.data()), &length) != nullptr &&
          length == digest.size());
  return digest;
}

Result<Digest> slow_digest(ConstByteSpan key, ConstByteSpan salt) {
  constexpr uint64_t kCost = 1 << 14;
  constexpr uint64_t kBlockSize = 8;
  constexpr uint64_t kMaxMemory = 64u << 20;
  Digest digest{};
  if (EVP_PBE_scrypt(reinterpret_cast<const char*>(key.data()), key.size(), raw(salt), salt.size(),
                     kCost, kBlockSize, 1, kMaxMemory,
                     reinterpret_cast<unsigned char*>(digest.data()), digest.size()) != 1) {
    return Status(Code::kOutOfMemory, "no memory for a slow digest");
  }
  return digest;
}

void wipe(ByteSpan bytes) { OPENSSL_cleanse(bytes.data(), bytes.size()); }

bool equal_in_constant_time(ConstByteSpan a, ConstByteSpan b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace hetcomm

// Test certificates: a certificate authority and the certificates that it signs, as PEM files in a
// folder. They are generated when the test runs, so none ever expires. The owning object deletes
// the folder, but only in the process that created it.
//
//   Certificates files;
//   files.settings()                                      "TLS=on;TLS_CERTIFICATE=...;...;"
//   files.settings(files.issue({.name = "old", .valid_to_s = -60}))
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

namespace hetcomm::test {

class Certificates {
 public:
  struct Wanted {
    std::string name = "localhost";
    std::string alternative_names = "DNS:localhost,IP:127.0.0.1";
    long valid_from_s = -3600;  // relative to now
    long valid_to_s = 24 * 3600;
    const char* pass_phrase = nullptr;
  };
  struct Issued {
    std::string certificate;
    std::string key;
  };

  explicit Certificates(const std::string& authority = "hetcomm test authority")
      : owner_(getpid()) {
    std::string pattern = std::filesystem::temp_directory_path() / "hetcomm-test-tls-XXXXXX";
    require(mkdtemp(pattern.data()) != nullptr);
    folder_ = pattern;
    authority_key_ = make_key();
    require(authority_key_ != nullptr);
    authority_ = make(authority_key_, {.name = authority}, nullptr);
    write(authority_file(), [&](std::FILE* file) { return PEM_write_X509(file, authority_); });
    default_ = issue({});
  }
  Certificates(const Certificates&) = delete;
  Certificates& operator=(const Certificates&) = delete;
  ~Certificates() {
    X509_free(authority_);
    EVP_PKEY_free(authority_key_);
    if (getpid() == owner_) std::filesystem::remove_all(folder_);
  }

  // Generates a P-256 key. The macro EVP_EC_gen() casts away a const.
  static EVP_PKEY* make_key() {
    char curve[] = "P-256";
    return EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", curve);
  }

  std::string authority_file() const { return folder_ + "/ca.pem"; }
  const Issued& standard() const { return default_; }
  // Writes |contents| to a file and returns its path.
  std::string file(const std::string& name, const std::string& contents) {
    const std::string path = folder_ + "/" + name;
    write(path, [&](std::FILE* to) {
      return std::fwrite(contents.data(), 1, contents.size(), to) == contents.size() ? 1 : 0;
    });
    return path;
  }

  Issued issue(const Wanted& wanted) {
    const std::string base = folder_ + "/" + std::to_string(++count_);
    EVP_PKEY* key = make_key();
    require(key != nullptr);
    X509* certificate = make(key, wanted, authority_);
    const Issued issued{base + ".pem", base + ".key"};
    write(issued.certificate, [&](std::FILE* file) { return PEM_write_X509(file, certificate); });
    write(issued.key, [&](std::FILE* file) {
      char* phrase = const_cast<char*>(wanted.pass_phrase);
      return PEM_write_PrivateKey(file, key, phrase == nullptr ? nullptr : EVP_aes_128_cbc(),
                                  nullptr, 0, nullptr, phrase);
    });
    X509_free(certificate);
    EVP_PKEY_free(key);
    return issued;
  }

  std::string settings() const { return settings(default_); }
  std::string settings(const Issued& own) const { return settings(own, authority_file()); }
  static std::string settings(const Issued& own, const std::string& authority) {
    return "TLS=on;TLS_CERTIFICATE=" + own.certificate + ";TLS_KEY=" + own.key +
           ";TLS_CA=" + authority + ";";
  }

 private:
  static void require(bool worked) {
    if (worked) return;
    std::fputs("no test certificates\n", stderr);
    std::abort();
  }

  template <typename Write>
  static void write(const std::string& path, Write&& write_to) {
    std::FILE* file = std::fopen(path.c_str(), "we");
    require(file != nullptr);
    require(fchmod(fileno(file), 0600) == 0 && write_to(file) == 1);
    require(std::fclose(file) == 0);
  }

  // Makes a certificate that the authority signs, or a self-signed one if |issuer| is null.
  X509* make(EVP_PKEY* key, const Wanted& wanted, X509* issuer) const {
    X509* certificate = X509_new();
    require(certificate != nullptr);
    require(X509_set_version(certificate, X509_VERSION_3) == 1);
    unsigned char serial[8];
    require(RAND_bytes(serial, sizeof(serial)) == 1);
    serial[0] &= 0x7f;
    BIGNUM* number = BN_bin2bn(serial, sizeof(serial), nullptr);
    require(BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate)) != nullptr);
    BN_free(number);
    X509_gmtime_adj(X509_getm_notBefore(certificate), wanted.valid_from_s);
    X509_gmtime_adj(X509_getm_notAfter(certificate), wanted.valid_to_s);
    X509_NAME* subject = X509_get_subject_name(certificate);
    require(X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8,
                                       reinterpret_cast<const unsigned char*>(wanted.name.c_str()),
                                       -1, -1, 0) == 1);
    require(X509_set_issuer_name(certificate,
                                 issuer == nullptr ? subject : X509_get_subject_name(issuer)) == 1);
    require(X509_set_pubkey(certificate, key) == 1);
    add_extension(certificate, NID_basic_constraints,
                  issuer == nullptr ? "critical,CA:TRUE" : "critical,CA:FALSE");
    if (issuer != nullptr && !wanted.alternative_names.empty()) {
      add_extension(certificate, NID_subject_alt_name, wanted.alternative_names.c_str());
    }
    require(X509_sign(certificate, issuer == nullptr ? key : authority_key_, EVP_sha256()) > 0);
    return certificate;
  }

  static void add_extension(X509* certificate, int nid, const char* value) {
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value);
    require(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1);
    X509_EXTENSION_free(extension);
  }

  pid_t owner_;
  std::string folder_;
  int count_ = 0;
  EVP_PKEY* authority_key_ = nullptr;
  X509* authority_ = nullptr;
  Issued default_;
};

}  // namespace hetcomm::test

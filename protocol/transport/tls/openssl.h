// OpenSSL's libssl.so.3, loaded with dlopen() when the first tls:// address is used: the client library must
// not add a dependency to the program, and a worker loads it before it is sandboxed. Loaded once, never
// closed.
#pragma once
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "common/result.h"

// clang-format off
#define GPUPOOL_OPENSSL(X)                                                                                                              \
  X(OPENSSL_init_ssl) X(TLS_client_method) X(TLS_server_method) X(SSL_CTX_new) X(SSL_CTX_free) X(SSL_CTX_ctrl)                          \
  X(SSL_CTX_set_num_tickets) X(SSL_CTX_set_ciphersuites) X(SSL_CTX_set_verify) X(SSL_CTX_set_default_verify_paths)                      \
  X(SSL_CTX_load_verify_locations) X(SSL_CTX_use_certificate_chain_file) X(SSL_CTX_use_PrivateKey_file) X(SSL_CTX_check_private_key)    \
  X(SSL_CTX_set_default_passwd_cb) X(SSL_load_client_CA_file) X(SSL_CTX_set_client_CA_list) X(SSL_CTX_set_psk_use_session_callback)     \
  X(SSL_CTX_set_psk_find_session_callback) X(SSL_new) X(SSL_free) X(SSL_set_bio) X(SSL_set_connect_state) X(SSL_set_accept_state)       \
  X(SSL_do_handshake) X(SSL_read_ex) X(SSL_write_ex) X(SSL_get_error) X(SSL_pending) X(SSL_shutdown) X(SSL_get_shutdown)                \
  X(SSL_ctrl) X(SSL_set1_host) X(SSL_get0_param) X(SSL_get_verify_result) X(SSL_get1_peer_certificate) X(SSL_export_keying_material)    \
  X(SSL_set_ex_data) X(SSL_get_ex_data) X(SSL_key_update) X(SSL_get_current_cipher) X(SSL_CIPHER_get_name)                              \
  X(SSL_session_reused) X(SSL_CIPHER_find) X(SSL_SESSION_new) X(SSL_SESSION_free) X(SSL_SESSION_set1_master_key)                        \
  X(SSL_SESSION_set_cipher) X(SSL_SESSION_set_protocol_version) X(BIO_meth_new) X(BIO_meth_set_write) X(BIO_meth_set_read)              \
  X(BIO_meth_set_ctrl) X(BIO_new) X(BIO_set_data) X(BIO_get_data) X(BIO_set_init) X(BIO_set_flags) X(BIO_clear_flags)                   \
  X(ERR_peek_error) X(ERR_clear_error) X(ERR_reason_error_string) X(X509_verify_cert_error_string) X(X509_VERIFY_PARAM_set1_ip_asc)     \
  X(X509_free) X(X509_get_subject_name) X(X509_NAME_get_index_by_NID) X(X509_NAME_get_entry) X(X509_NAME_ENTRY_get_data)                \
  X(ASN1_STRING_to_UTF8) X(CRYPTO_free) X(X509_get_ext_d2i) X(OPENSSL_sk_num) X(OPENSSL_sk_value) X(GENERAL_NAMES_free)                 \
  X(ASN1_STRING_get0_data) X(ASN1_STRING_length)
// clang-format on

namespace gpupool::transport::tls {

struct Openssl {
#define GPUPOOL_FUNCTION(name) decltype(&::name) name;
  GPUPOOL_OPENSSL(GPUPOOL_FUNCTION)
#undef GPUPOOL_FUNCTION
  BIO_METHOD* socket_method;  // from make_socket_method() (stream.cc)
};

// ErrorCode::unavailable: the library is not installed or cannot be used. Any thread.
Result<const Openssl*> load_openssl();
// To be called only after load_openssl() has succeeded.
const Openssl& openssl();

}  // namespace gpupool::transport::tls

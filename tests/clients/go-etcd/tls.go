package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/client/v3/yaml"
)

// Prints whether etcd's own client accepts the server of a client file: "accepted", or the reason.
func printVerdict(file string) {
	config, err := yaml.NewConfig(file)
	must(err)
	endpoint, err := url.Parse(config.Endpoints[0])
	must(err)
	dialer := &net.Dialer{Timeout: 30 * time.Second}
	connection, err := tls.DialWithDialer(dialer, "tcp", endpoint.Host, config.TLS)
	if err != nil {
		fmt.Println(err)
		return
	}
	must(connection.Close())
	fmt.Println("accepted")
}

// A certificate with its key.
type issued struct {
	der []byte
	key crypto.Signer
}

// Changes to a certificate template.
type change func(*x509.Certificate)

// Writes a directory for each type of server: its certificates, its key, the trusted certificates,
// and other lines of the client file.
func writeCases(directory string) {
	p256, p384, p521 := elliptic.P256(), elliptic.P384(), elliptic.P521()
	write := func(name string, server issued, sent []issued, trusted ...issued) {
		writeCase(filepath.Join(directory, name), server, sent, trusted)
	}
	// keys and hashes
	for name, one := range map[string]struct {
		authority, server crypto.Signer
		algorithm         x509.SignatureAlgorithm
	}{
		"p256":             {newECDSA(p256), newECDSA(p256), x509.ECDSAWithSHA256},
		"p256-sha384":      {newECDSA(p256), newECDSA(p256), x509.ECDSAWithSHA384},
		"p256-sha512":      {newECDSA(p256), newECDSA(p256), x509.ECDSAWithSHA512},
		"p384":             {newECDSA(p384), newECDSA(p384), x509.ECDSAWithSHA384},
		"p384-sha256":      {newECDSA(p384), newECDSA(p384), x509.ECDSAWithSHA256},
		"p384-sha512":      {newECDSA(p384), newECDSA(p256), x509.ECDSAWithSHA512},
		"p521":             {newECDSA(p521), newECDSA(p521), x509.ECDSAWithSHA512},
		"p521-sha256":      {newECDSA(p521), newECDSA(p256), x509.ECDSAWithSHA256},
		"p521-sha384":      {newECDSA(p521), newECDSA(p384), x509.ECDSAWithSHA384},
		"p521-under-rsa":   {newRSA(2048), newECDSA(p521), x509.SHA512WithRSA},
		"rsa":              {newRSA(2048), newRSA(2048), x509.SHA256WithRSA},
		"rsa-3072":         {newRSA(3072), newRSA(3072), x509.SHA384WithRSA},
		"rsa-pss":          {newRSA(2048), newRSA(2048), x509.SHA256WithRSAPSS},
		"rsa-1024":         {newRSA(2048), newRSA(1024), x509.SHA256WithRSA},
		"rsa-1024-issuer":  {newRSA(1024), newRSA(2048), x509.SHA256WithRSA},
		"ed25519":          {newEd25519(), newEd25519(), x509.PureEd25519},
		"signed-with-sha1": {newRSA(2048), newRSA(2048), x509.SHA1WithRSA},
	} {
		root := authority("root", one.authority)
		write(name, server(&root, one.server, func(t *x509.Certificate) { t.SignatureAlgorithm = one.algorithm }), nil, root)
	}

	key := newECDSA(p256)
	root, other := authority("root", newECDSA(p256)), authority("root", newECDSA(p256))
	plain := server(&root, key)
	// authorities of one name
	write("same-name-right-first", plain, nil, root, other)
	write("same-name-right-last", plain, nil, other, root)
	write("same-name-wrong", plain, nil, other)
	write("other-name", plain, nil, authority("stranger", newECDSA(p256)))

	// a server whose certificate is itself trusted
	isAuthority := func(t *x509.Certificate) { t.IsCA, t.KeyUsage = true, t.KeyUsage|x509.KeyUsageCertSign }
	self := server(nil, key, isAuthority)
	write("itself-as-authority", self, nil, self)
	self = server(nil, key)
	write("itself-without-authority", self, nil, self)
	write("itself-without-its-issuer", plain, nil, plain)
	self = server(nil, key, isAuthority, elsewhere)
	write("itself-wrong-name", self, nil, self)
	self = server(nil, key, isAuthority, ended)
	write("itself-expired", self, nil, self)
	self = server(nil, key, isAuthority, func(t *x509.Certificate) { t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} })
	write("itself-for-clients", self, nil, self)
	write("itself-untrusted", server(nil, key, isAuthority), nil, root)
	write("authority-as-server", server(&root, key, isAuthority), nil, root)
	trustedServer := server(&root, newECDSA(p256))
	write("signed-by-server", server(&trustedServer, key), nil, trustedServer)

	// chains
	middle := issue(&root, authorityTemplate("middle"), newECDSA(p256))
	below := server(&middle, key)
	write("intermediate", below, []issued{middle}, root)
	write("intermediate-missing", below, nil, root)
	write("intermediate-trusted", below, nil, middle)
	write("intermediate-is-server", server(&trustedServer, key), []issued{trustedServer}, root)
	one := authorityTemplate("one")
	one.PermittedDNSDomainsCritical, one.PermittedDNSDomains = true, []string{"example.org"}
	one.PermittedIPRanges = []*net.IPNet{{IP: net.IPv4(10, 0, 0, 0).To4(), Mask: net.CIDRMask(8, 32)}}
	constrained := issue(&root, one, newECDSA(p256))
	write("name-constraints", server(&constrained, key), []issued{constrained}, root)

	// dates, names and purposes
	write("expired", server(&root, key, ended), nil, root)
	write("not-yet-valid", server(&root, key, func(t *x509.Certificate) { t.NotBefore = time.Now().Add(24 * time.Hour) }), nil, root)
	old := authorityTemplate("root")
	ended(old)
	expired := issue(nil, old, root.key)
	write("authority-expired", plain, nil, expired)
	write("authority-renewed", plain, nil, expired, root)
	write("wrong-name", server(&root, key, elsewhere), nil, root)
	write("common-name-alone", server(&root, key, func(t *x509.Certificate) { t.DNSNames, t.IPAddresses, t.Subject.CommonName = nil, nil, "127.0.0.1" }), nil, root)
	purpose := func(usage x509.ExtKeyUsage) change {
		return func(t *x509.Certificate) { t.ExtKeyUsage = []x509.ExtKeyUsage{usage} }
	}
	write("for-clients", server(&root, key, purpose(x509.ExtKeyUsageClientAuth)), nil, root)
	write("for-anything", server(&root, key, purpose(x509.ExtKeyUsageAny)), nil, root)
	write("version-1-skipped", issued{versionOne(key), key}, nil, root)
	must(os.WriteFile(filepath.Join(directory, "version-1-skipped", "more.yaml"), []byte("insecure-skip-tls-verify: true\n"), 0o600))
}

func elsewhere(t *x509.Certificate) {
	t.DNSNames, t.IPAddresses = []string{"paris.example.org"}, []net.IP{net.IPv4(192, 0, 2, 1)}
}

func ended(t *x509.Certificate) {
	t.NotBefore, t.NotAfter = time.Now().Add(-48*time.Hour), time.Now().Add(-24*time.Hour)
}

func template(name string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	must(err)
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
	}
}

func authorityTemplate(name string) *x509.Certificate {
	result := template(name)
	result.IsCA, result.KeyUsage = true, x509.KeyUsageCertSign
	return result
}

func authority(name string, key crypto.Signer) issued {
	return issue(nil, authorityTemplate(name), key)
}

// Returns a server certificate for 127.0.0.1, which is self-signed without an issuer.
func server(issuer *issued, key crypto.Signer, changes ...change) issued {
	result := template("server")
	result.DNSNames, result.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)}
	result.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, change := range changes {
		change(result)
	}
	return issue(issuer, result, key)
}

func issue(issuer *issued, template *x509.Certificate, key crypto.Signer) issued {
	parent, signer := template, key
	if issuer != nil {
		var err error
		parent, err = x509.ParseCertificate(issuer.der)
		must(err)
		signer = issuer.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	must(err)
	return issued{der, key}
}

// Returns a self-signed X.509 certificate of version 1, which has no extensions.
// `openssl x509 -req` creates such certificates.
func versionOne(key *ecdsa.PrivateKey) []byte {
	type validity struct{ NotBefore, NotAfter time.Time }
	type content struct {
		Serial          *big.Int
		Algorithm       pkix.AlgorithmIdentifier
		Issuer          asn1.RawValue
		Validity        validity
		Subject, Public asn1.RawValue
	}
	name, err := asn1.Marshal(pkix.Name{CommonName: "first"}.ToRDNSequence())
	must(err)
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	must(err)
	raw := func(der []byte) asn1.RawValue { return asn1.RawValue{FullBytes: der} }
	algorithm := pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2}}
	dates := validity{time.Now().Add(-time.Hour).UTC(), time.Now().Add(24 * time.Hour).UTC()}
	signed, err := asn1.Marshal(content{big.NewInt(1), algorithm, raw(name), dates, raw(name), raw(public)})
	must(err)
	hash := sha256.Sum256(signed)
	signature, err := ecdsa.SignASN1(rand.Reader, key, hash[:])
	must(err)
	der, err := asn1.Marshal(struct {
		Content   asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{raw(signed), algorithm, asn1.BitString{Bytes: signature, BitLength: 8 * len(signature)}})
	must(err)
	return der
}

func writeCase(directory string, server issued, sent, trusted []issued) {
	must(os.MkdirAll(directory, 0o700))
	key, err := x509.MarshalPKCS8PrivateKey(server.key)
	must(err)
	chain := func(certificates []issued) (text []byte) {
		for _, one := range certificates {
			text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: one.der})...)
		}
		return text
	}
	for name, text := range map[string][]byte{
		"server.crt": chain(append([]issued{server}, sent...)),
		"server.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		"ca.crt":     chain(trusted),
		"more.yaml":  nil,
	} {
		must(os.WriteFile(filepath.Join(directory, name), text, 0o600))
	}
}

func newECDSA(curve elliptic.Curve) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	must(err)
	return key
}

func newRSA(bits int) *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, bits)
	must(err)
	return key
}

func newEd25519() ed25519.PrivateKey {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	must(err)
	return key
}

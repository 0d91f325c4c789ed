# shellcheck shell=sh
# sh -s check|make DIRECTORY DAYS PORTION...
# The certificates of the extender on this machine. PORTION is one of
#   local            a CA of its own, for the extender's certificate (127.0.0.1) and that of kube-scheduler
#   proxied CRT KEY  the certificate of kube-scheduler alone, signed by this CA, the API server's
# Prints a line for each that is missing, foreign or ends within DAYS; with make, makes them. The last line names the file
# of kube-scheduler's certificate, a new one each time it is made, so that kube-scheduler is restarted with it.
set -eu
umask 077
action=$1 directory=$2 seconds=$(($3 * 86400)) layout=$4
# The key is looked at too: it is put in place first, and a machine that stops then has the certificate of another.
holds() { # CERTIFICATE KEY CA
  [ -s "$1" ] && [ -s "$2" ] && openssl x509 -noout -checkend "$seconds" -in "$1" >/dev/null 2>&1 &&
    openssl verify -CAfile "$3" "$1" >/dev/null 2>&1 &&
    [ "$(openssl x509 -noout -pubkey -in "$1")" = "$(openssl pkey -pubout -in "$2" 2>/dev/null)" ]
}

key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1"; }

sign() { # TARGET SUBJECT EXTENSIONS
  key "$1.key.new"
  printf '%s\n' "$3" >"$1.ext"
  said=$(openssl req -new -key "$1.key.new" -subj "$2" |
    openssl x509 -req -CA "$ca_crt" -CAkey "$ca_key" -set_serial "0x$(openssl rand -hex 16)" -days 3650 -sha256 \
      -extfile "$1.ext" -out "$1.crt.new" 2>&1) || {
    echo "$ca_key cannot sign with $ca_crt: $said" >&2
    exit 1
  }
  rm -f "$1.ext"
  mv "$1.key.new" "$1.key"
  mv "$1.crt.new" "$1.crt"
}

share() { # the CA's certificate, beside what it signed
  cmp -s "$ca_crt" "$1" && return
  echo "$1"
  if [ "$action" = make ]; then
    mkdir -p "${1%/*}"
    cp "$ca_crt" "$1.new" && mv "$1.new" "$1"
  fi
}

if [ "$layout" = local ]; then
  ca_crt=$directory/ca/ca.crt ca_key=$directory/ca/ca.key
  if ! holds "$ca_crt" "$ca_key" "$ca_crt"; then
    echo "$ca_crt"
    if [ "$action" = make ]; then
      mkdir -p "$directory/ca"
      key "$ca_key.new"
      openssl req -x509 -new -key "$ca_key.new" -subj "/CN=kube-accel-extender-ca" -days 3650 -sha256 -out "$ca_crt.new" \
        -addext "keyUsage=critical,keyCertSign,cRLSign"
      mv "$ca_key.new" "$ca_key"
      mv "$ca_crt.new" "$ca_crt"
    fi
  fi
  share "$directory/extender/ca.crt"
  server=$directory/extender/server
  if ! holds "$server.crt" "$server.key" "$ca_crt"; then
    echo "$server.crt"
    if [ "$action" = make ]; then
      sign "$server" "/CN=kube-accel-extender" "basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth
subjectAltName=IP:127.0.0.1,DNS:localhost"
    fi
  fi
else
  ca_crt=$5 ca_key=$6
fi
share "$directory/scheduler/ca.crt"

client=$(find "$directory/scheduler" -name 'client-*.crt' 2>/dev/null | sort | tail -n 1)
client=${client%.crt}
if [ -z "$client" ] || ! holds "$client.crt" "$client.key" "$ca_crt"; then
  old=$client client=$directory/scheduler/client-$(date +%s)
  echo "$client.crt"
  if [ "$action" = make ]; then
    sign "$client" "/CN=kube-accel-scheduler" "basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=clientAuth"
    # The one before stays until next time: kube-scheduler has not been told yet.
    find "$directory/scheduler" -name 'client-*' ! -path "$client.*" ! -path "${old:-none}.*" -exec rm -f {} +
  fi
fi
echo "client ${client##*/}"

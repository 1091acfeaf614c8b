#!/usr/bin/env bash
# Whether the broker answers requests: its port opens up to a second before it does. Kafka's own tools would start a
# Java machine for each question; this asks by hand (ApiVersions, version 0, correlation 7) and reads the correlation.
set -eu
exec 3<>/dev/tcp/127.0.0.1/9092
printf '\0\0\0\16\0\22\0\0\0\0\0\7\0\4ping' >&3
[ "$(timeout 3 head -c 8 <&3 | tail -c 4 | od -An -tx1 | tr -d ' ')" = 00000007 ]

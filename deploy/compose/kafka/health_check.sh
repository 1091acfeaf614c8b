#!/usr/bin/env bash
# Exits with 0 when the broker responds to a request; its port opens up to a second before that. Kafka's own tools would
# start a Java VM for each check; this sends an ApiVersions request (version 0, correlation id 7) and compares the id.
set -eu
exec 3<>/dev/tcp/127.0.0.1/9092
printf '\0\0\0\16\0\22\0\0\0\0\0\7\0\4ping' >&3
[ "$(timeout 3 head -c 8 <&3 | tail -c 4 | od -An -tx1 | tr -d ' ')" = 00000007 ]

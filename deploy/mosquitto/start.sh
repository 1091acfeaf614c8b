# Starts Mosquitto in the container of docker-compose.yml, with one user, `shoal`, and the password that the service
# `secrets` has made. The broker's own file holds only a digest of it.
set -e
umask 077
printf 'shoal:%s\n' "$(cat /run/shoal/mqtt/password)" > /mosquitto/passwords
mosquitto_passwd -U /mosquitto/passwords
chown mosquitto /mosquitto/passwords
exec mosquitto -c /mosquitto/config/mosquitto.conf

// The clients as the server has observed them.

// The clients of a status, one object each, with their ages at `now`.
export function clientsOf({ clients, inactive_after_s, quarantined: names }, now) {
  const excluded = new Set(names ?? []);
  return clients.name.map((name, i) => {
    const age = Math.max(0, now - clients.last_seen[i]);
    const inactive = age > inactive_after_s;
    const quarantined = excluded.has(name);
    return { name, age, inactive, quarantined, readings: clients.readings[i], rate: inactive ? 0 : clients.readings_per_s[i] };
  });
}
